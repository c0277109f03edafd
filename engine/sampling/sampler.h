// Logits to a token. A sampler belongs to one sequence; its random numbers depend on the seed and
// the number of the token alone, so the same request gives the same text in any company.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/token_id.h"
#include "engine/sampling/logit_row.h"
#include "engine/sampling/logprobs.h"
#include "engine/sampling/weighted_draw.h"

namespace lockstep {

struct SamplingParameters {
  float temperature = 1.0F;       // 0: the most likely token (of equal ones the lowest id)
  uint32_t top_k = 0;             // 0: no limit
  float top_p = 1.0F;             // (0, 1]
  float min_p = 0.0F;             // [0, 1], relative to the most likely token
  float presence_penalty = 0.0F;  // OpenAI's definitions, over the generated tokens
  float frequency_penalty = 0.0F;
  float repetition_penalty = 1.0F;  // > 0; over prompt and generated tokens (the CTRL paper's rule)
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  uint64_t seed = 0;
};

class Sampler {
 public:
  Sampler(SamplingParameters parameters, std::span<const TokenId> prompt, size_t vocabulary_size);

  // Picks the next token. `banned` tokens are never picked (the end tokens below min_tokens).
  // Logits are not changed. CHECKs that logits are vocabulary_size long. Records the pick for the
  // penalties. Order: bias, penalties, ban, temperature, top_k, top_p, min_p, draw.
  // Returns -1 if a logit is NaN or +infinity, or nothing can be picked.
  TokenId sample(std::span<const float> logits, std::span<const TokenId> banned);

  // The same pick, bit for bit, from the likeliest tokens alone, where they leave no doubt of it.
  // None: they do, and nothing is recorded; the whole row tells.
  std::optional<TokenId> sample(const LogitCandidates& candidates, std::span<const TokenId> banned);

  // The draw of the next pick from the row if nothing is adjusted and no candidate would do;
  // otherwise an empty request. The next sample() takes its outcome with the candidates. `ahead`:
  // likewise of the pick that comes so many after the next one; it is of use if it is what would be
  // asked for then.
  LogitDrawRequest draw_request(size_t ahead = 0) const;

  // Every pick is draw_request()'s draw, or without one the likeliest token, whatever has been
  // picked before it.
  bool picks_plainly() const;

 private:
  // The known facts of the tokens that are no candidates, adjusted.
  struct Rest {
    bool is_empty = false;
    // Each comes after this one in the order of likelihood, or its logit is at most `raised`.
    LikelihoodCut last;
    float raised = 0;

    // All of them come after this token.
    bool is_behind(const WeighedToken& token) const {
      return is_empty || (last.holds(token.logit, token.token) && token.logit > raised);
    }
  };

  void adjust(std::span<const float> logits);
  float penalized(float logit, uint32_t count) const;
  void ban(std::span<const TokenId> banned);
  LikelihoodCut cut_to_top_k();
  LikelihoodCut cut_to_top_p(LikelihoodCut cut, float logit_max);
  // Sets weights_ to exp((logit - logit_max) / temperature) for every token within the cut and at
  // least `weight_min`, and to 0 for the others. Returns their sum.
  double weigh(LikelihoodCut cut, float logit_max, float weight_min);
  // The token at which the running sum of weights_ passes `target`.
  TokenId draw(double target) const;

  float adjusted(TokenId token, float logit) const;
  bool adjust(const LogitCandidates& candidates, std::span<const TokenId> banned);
  Rest find_rest(const LogitCandidates& candidates);
  bool adjusts() const;
  std::optional<TokenId> draw_candidate(const Rest& rest, float logit_max, const LogitDraw* drawn);
  std::optional<LikelihoodCut> cut_candidates(const Rest& rest, float logit_max,
                                              double rest_weight_max, const LogitDraw* drawn);

  SamplingParameters parameters_;  // biases in the order of their tokens
  size_t vocabulary_size_;
  bool moderate_ = false;   // no parameter makes a NaN of a finite logit
  bool penalizes_ = false;  // tokens that have been there before
  bool raises_ = false;     // some of those
  // How often each token was generated; those that are only in the prompt have 0.
  std::unordered_map<TokenId, uint32_t> counts_;
  uint64_t draws_ = 0;
  // All of the following are reused.
  std::vector<TokenLogprob> candidates_;
  std::vector<WeighedToken> weighed_;
  std::vector<float> adjusted_;
  std::vector<float> weights_;
  std::vector<double> block_sums_;  // of weights_
  std::vector<TokenId> known_;      // the candidates' tokens, ascending
  FewWeights few_;
};

}  // namespace lockstep
