// Rows that are kept from token to token of a sequence: what operations with a state share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/base/range.h"
#include "engine/pass/pass.h"

namespace lockstep {

// Calls work(tokens) for all tokens of the pass in their order: those that follow one another in a
// sequence together, `most` of them at once. Where the state behind the last of them is to be kept
// in another slot, calls keep(from, to) then, with the numbers of both slots.
template <typename Work, typename Keep>
void for_each_run(const Pass& pass, size_t most, Work work, Keep keep) {
  const auto& tokens = pass.batch.tokens;
  auto checkpoint = pass.batch.checkpoints.begin();
  for (size_t begin = 0; begin < tokens.size();) {
    const bool any_left = checkpoint != pass.batch.checkpoints.end();
    const size_t kept_end = any_left ? checkpoint->token + 1 : tokens.size();
    const size_t most_end = std::min(kept_end, begin + std::min(most, tokens.size() - begin));
    size_t end = begin + 1;
    while (end < most_end && tokens[end].sequence == tokens[end - 1].sequence) ++end;
    work(Range{begin, end});
    if (any_left && end == kept_end) {
      keep(pass.batch.state_slots[tokens[end - 1].sequence], checkpoint->slot);
      ++checkpoint;
    }
    begin = end;
  }
}

// From one slot to another: rows that are `stride` apart.
inline void copy_state(const float* from, float* to, size_t rows, size_t stride, size_t columns) {
  for (size_t row = 0; row < rows; ++row) {
    std::copy_n(from + row * stride, columns, to + row * stride);
  }
}

// Zeros a state, rows that are `stride` apart, where these tokens begin their sequence.
inline void clear_at_begin(const Pass& pass, Range tokens, float* state, size_t rows, size_t stride,
                           size_t columns) {
  if (pass.batch.tokens[tokens.begin].position != 0) return;
  for (size_t row = 0; row < rows; ++row) std::fill_n(state + row * stride, columns, 0.0F);
}

// log(1 + exp(x)), in f64 as a routing's numbers are: the same on every instruction set.
inline double softplus(double x) {
  return x > 30 ? x : std::log1p(std::exp(x));
}

}  // namespace lockstep
