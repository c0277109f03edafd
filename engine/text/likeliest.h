// The most likely of a vocabulary's tokens, without sorting all of them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/text/sampler.h"

namespace lockstep {

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
