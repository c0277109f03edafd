// The parts of a draw by weight, over all tokens of a vocabulary (sampler.cpp) and over the few
// that weigh anything (few_weights.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/text/tokenizer.h"

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

}  // namespace lockstep
