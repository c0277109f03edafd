// The log-probabilities of tokens, and the most likely ones of a vocabulary without sorting all of
// them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/base/token_id.h"

namespace lockstep {

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

// The order of likelihood: higher first, of equal ones the lower id. `logprob` may be any measure
// that is no NaN.
inline bool is_likelier(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
}

// Puts the `count` (at least 1) first tokens in that order into `likeliest`, with the last of them
// at its end and the others in no order; NaN counts as -infinity. Linear in the number of logits.
void select_likeliest(std::span<const float> logits, size_t count,
                      std::vector<TokenLogprob>& likeliest);

}  // namespace lockstep
