// Draws by weight over a vocabulary: over all of its tokens, and over the few that weigh anything.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/token_id.h"

namespace lockstep {

// Weights are summed per block of so many tokens, so that a draw finds its block first.
inline constexpr size_t kDrawBlock = 256;

// The last of the tokens that may be drawn, in the order of likelihood.
struct LikelihoodCut {
  float logit = 0;
  TokenId token = 0;

  bool holds(float other_logit, TokenId other_token) const {
    return other_logit > logit || (other_logit == logit && other_token <= token);
  }
};

// 1 / temperature. Temperatures below 1e-30 mean the same as 0 for any two logits that differ; it
// keeps the inverse finite.
inline float inverse_temperature(float temperature) {
  constexpr float kTemperatureMin = 1e-30F;
  return 1.0F / std::max(temperature, kTemperatureMin);
}

// A number in [0, 1) of the seed and the number of the draw alone.
double uniform(uint64_t seed, uint64_t draw_number);

struct WeighedToken {
  TokenId token = 0;
  float logit = 0;
  float weight = 0;
};

// Their order of likelihood.
inline bool is_before(const WeighedToken& a, const WeighedToken& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// The end of the smallest set of likeliest tokens that together weigh at least `wanted` (or of all
// of them). Puts them into another order. At least one token; the sums' order, and so their last
// bits, follow from the tokens' order.
LikelihoodCut find_cut(std::vector<WeighedToken>& tokens, double wanted);

// The tokens of a vocabulary that weigh anything, when they are few: sums and draws have the bits
// that they have over the whole vocabulary (Sampler), since what weighs nothing changes no sum.
class FewWeights {
 public:
  // Empty; then filled with logits in any order, each token once.
  std::vector<WeighedToken>& tokens() { return tokens_; }
  const std::vector<WeighedToken>& tokens() const { return tokens_; }
  // Puts them into the order of the tokens, which the following need.
  void arrange();

  // Sets the weights to exp((logit - logit_max) * inverse) within the cut and where they are at
  // least `weight_min`, elsewhere to 0. Returns their sum.
  double weigh(const LikelihoodCut& cut, float logit_max, float inverse, float weight_min);
  // The token at which the running sum of weights passes `target`; some token weighs something.
  TokenId draw(double target, size_t vocabulary_size) const;

 private:
  // The sum of the tokens of a block that weigh something.
  struct BlockSum {
    size_t block = 0;  // of kDrawBlock tokens
    size_t begin = 0;  // in tokens_, with others between that weigh nothing
    size_t end = 0;
    double sum = 0;
  };

  std::vector<WeighedToken> tokens_;
  std::vector<BlockSum> blocks_;
};

}  // namespace lockstep
