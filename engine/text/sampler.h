// Logits to a token. A sampler belongs to one sequence; its random numbers depend on the seed and
// the number of the token alone, so the same request gives the same text in any company.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/text/tokenizer.h"

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

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;  // natural log of softmax over the raw logits, before bias and temperature
};

// The log-probability of `token` and the `count` most likely ones (descending; of equal ones the
// lower id first) under the raw logits. Sums in a fixed order, in double.
struct LogprobResult {
  float logprob = 0;
  std::vector<TokenLogprob> top;
};
LogprobResult compute_logprobs(std::span<const float> logits, TokenId token, size_t count);

class Sampler {
 public:
  Sampler(SamplingParameters parameters, std::span<const TokenId> prompt, size_t vocabulary_size);

  // Picks the next token. `banned` tokens are never picked (the end tokens below min_tokens).
  // Logits are not changed. CHECKs that logits are vocabulary_size long. Records the pick for the
  // penalties. Order: bias, penalties, ban, temperature, top_k, top_p, min_p, draw.
  // Returns -1 if a logit is NaN or +infinity, or nothing can be picked.
  TokenId sample(std::span<const float> logits, std::span<const TokenId> banned);

 private:
  // The last of the tokens that may be drawn, in the order of likelihood.
  struct Cut {
    float logit = 0;
    TokenId token = 0;
  };

  void adjust(std::span<const float> logits);
  void ban(std::span<const TokenId> banned);
  Cut cut_to_top_k();
  Cut cut_to_top_p(Cut cut, float logit_max);
  // Sets weights_ to exp((logit - logit_max) / temperature) for every token within the cut and at
  // least `weight_min`, and to 0 for the others. Returns their sum.
  double weigh(Cut cut, float logit_max, float weight_min);
  // The token at which the running sum of weights_ passes `target`.
  TokenId draw(double target) const;

  SamplingParameters parameters_;
  size_t vocabulary_size_;
  // How often each token was generated; those that are only in the prompt have 0.
  std::unordered_map<TokenId, uint32_t> counts_;
  uint64_t draws_ = 0;
  std::vector<TokenLogprob> candidates_;  // reused
  std::vector<float> adjusted_;           // reused
  std::vector<float> weights_;            // reused
  std::vector<double> block_sums_;        // of weights_; reused
};

}  // namespace lockstep
