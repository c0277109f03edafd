// The softmax of attention: of one row over one chunk, and how chunks are merged; see
// AttentionArguments in attention.h. Written over the small vector type.
#pragma once

#include <cfloat>
#include <cstddef>

#include "engine/kernels/attention.h"
#include "engine/kernels/cpu/activations.inl.h"
#include "engine/kernels/cpu/exponential.inl.h"

namespace lockstep {
namespace {

inline constexpr size_t kPageVectors = kPageTokens / 16;

// Some tokens of a chunk, counted from its first; empty where the end is not after the begin.
struct TokenRange {
  size_t begin;
  size_t end;
};

inline F32x16 lane_numbers() {
  alignas(64) static constexpr float kNumbers[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                     8, 9, 10, 11, 12, 13, 14, 15};
  return load(kNumbers);
}

// `values` in the lanes that stand for tokens of `range`, and `outside` elsewhere, whatever the
// values are; the first lane is token `first`.
inline F32x16 mask_lanes(F32x16 values, size_t first, TokenRange range, F32x16 outside) {
  const F32x16 index = lane_numbers();
  const auto distance = [first](size_t token) {
    return broadcast(static_cast<float>(static_cast<int>(token) - static_cast<int>(first)));
  };
  const F32x16 before_end = select_less(index, distance(range.end), values, outside);
  return select_less(index, distance(range.begin), outside, before_end);
}

// The same with -infinity elsewhere.
inline F32x16 mask_scores(F32x16 values, size_t first, TokenRange range) {
  return mask_lanes(values, first, range, broadcast(-__builtin_inff()));
}

// True where scores are more than products and their scale.
inline bool changes_scores(const AttentionArguments& arguments) {
  return arguments.score_cap != 0 || arguments.slopes != nullptr;
}

// Caps a query's scores with the tokens in `range`, whole vectors of them, of the chunk from
// position `chunk_first` on, and adds the query's slope to them. `unit`: of the scores.
[[gnu::noinline]] inline void change_scores(const AttentionArguments& arguments, size_t token,
                                            size_t query, size_t chunk_first, TokenRange range,
                                            float unit, float* scores) {
  const size_t begin = range.begin / 16 * 16;
  if (arguments.score_cap != 0) {
    const F32x16 cap = broadcast(arguments.score_cap * unit);
    for (size_t i = begin; i < range.end; i += 16) {
      store(scores + i, mul(hyperbolic_tangent(div(load(scores + i), cap)), cap));
    }
  }
  if (arguments.slopes == nullptr) return;
  const F32x16 slope = broadcast(arguments.slopes[query] * unit);
  const size_t position = arguments.position + token;
  for (size_t i = begin; i < range.end; i += 16) {
    const auto first = static_cast<float>(static_cast<ptrdiff_t>(chunk_first + i) -
                                          static_cast<ptrdiff_t>(position));
    const F32x16 distance = add(broadcast(first), lane_numbers());
    const F32x16 negative = sub(zero(), max(distance, sub(zero(), distance)));
    store(scores + i, fma(slope, negative, load(scores + i)));
  }
}

// The greatest of the scores in `range` and of -FLT_MAX. What lies outside in the first and last
// vector becomes -infinity.
inline float greatest_score(TokenRange range, float* scores) {
  F32x16 greatest = broadcast(-FLT_MAX);
  for (size_t token = range.begin / 16 * 16; token < range.end; token += 16) {
    F32x16 values = load(scores + token);
    if (token < range.begin || token + 16 > range.end) {
      values = mask_scores(values, token, range);
      store(scores + token, values);
    }
    // A NaN is passed over here, and seen in the sum.
    greatest = max(values, greatest);
  }
  return max_lanes(greatest);
}

// Turns the scores in `range` into probabilities relative to `maximum`; returns their sum.
inline float take_probabilities(TokenRange range, float maximum, float* scores) {
  const F32x16 offset = broadcast(maximum);
  F32x16 sums[kPageVectors];
  for (F32x16& sum : sums) sum = zero();
  size_t token = range.begin / kPageTokens * kPageTokens;
  for (; token < range.end; token += kPageTokens) {
    for (size_t vector = 0; vector < kPageVectors; ++vector) {
      const size_t first = token + vector * 16;
      if (first + 16 <= range.begin || first >= range.end) continue;
      const F32x16 probabilities = bounded_exponential(sub(load(scores + first), offset));
      store(scores + first, probabilities);
      sums[vector] = add(sums[vector], probabilities);
    }
  }
  return sum_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// The maximum and the sum of some rows, 16 together.
struct SoftmaxState {
  F32x16 maximum;
  F32x16 sum;
};

// Before the first chunk: of `count` rows (at most 16), from row `first` of the arguments on.
inline SoftmaxState initial_state(const AttentionArguments& arguments, size_t first, size_t count) {
  if (arguments.sinks == nullptr) return {broadcast(-FLT_MAX), zero()};
  alignas(64) float sinks[16];
  store(sinks, zero());
  for (size_t row = 0; row < count; ++row) {
    sinks[row] = arguments.sinks[(first + row) % arguments.query_count];
  }
  return {load(sinks), broadcast(1.0F)};
}

// Merges a chunk's maximums and sums into the state; returns what the outputs are multiplied by.
struct MergeFactors {
  F32x16 old_factor;
  F32x16 new_factor;
};
inline MergeFactors merge(const SoftmaxState& chunk, SoftmaxState& state) {
  const F32x16 maximum = max(state.maximum, chunk.maximum);
  const MergeFactors factors = {bounded_exponential(sub(state.maximum, maximum)),
                                bounded_exponential(sub(chunk.maximum, maximum))};
  state.maximum = maximum;
  state.sum = fma(chunk.sum, factors.new_factor, mul(state.sum, factors.old_factor));
  return factors;
}

// output = chunk * new_factor + output * old_factor over `count` floats, a multiple of 16.
inline void merge_output(const float* chunk, size_t count, float old_factor, float new_factor,
                         float* output) {
  const F32x16 old_factors = broadcast(old_factor);
  const F32x16 new_factors = broadcast(new_factor);
  for (size_t i = 0; i < count; i += 16) {
    store(output + i, fma(load(chunk + i), new_factors, mul(load(output + i), old_factors)));
  }
}

}  // namespace
}  // namespace lockstep
