// The norm and the gate of the feed-forward; see kernel_table.h. Written over the small vector
// type, and without functions of the standard library: compiled with the flags of an instruction
// set, one of them could become the copy that the whole program uses.
#pragma once

#include <cstddef>

#include "engine/kernels/cpu/exponential.inl.h"

namespace lockstep {
namespace {

// The sum of the squares of a chunk of at most 32 elements.
inline float chunk_square_sum(const float* x, size_t count) {
  const size_t first = count < 16 ? count : 16;
  const F32x16 low = load_first(x, first);
  const F32x16 high = load_first(x + first, count - first);
  return sum_lanes(fma(high, high, fma(low, low, zero())));
}

inline float square_sum(const float* x, size_t count) {
  float sum = 0.0F;
  size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const F32x16 low = load(x + i);
    const F32x16 high = load(x + i + 16);
    sum += sum_lanes(fma(high, high, fma(low, low, zero())));
  }
  if (i < count) sum += chunk_square_sum(x + i, count - i);
  return sum;
}

inline void rms_norm(const float* x, const float* weight, size_t count, float epsilon, float* out) {
  const float mean = square_sum(x, count) / static_cast<float>(count);
  const F32x16 factor = broadcast(1.0F / __builtin_sqrtf(mean + epsilon));
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    store(out + i, mul(mul(load(x + i), factor), load(weight + i)));
  }
  if (i < count) {
    const size_t rest = count - i;
    store_first(out + i, mul(mul(load_first(x + i, rest), factor), load_first(weight + i, rest)),
                rest);
  }
}

inline void weigh(const float* x, const float* weight, size_t count, float* out,
                  float* chunk_sums) {
  for (size_t i = 0; i < count; i += 32) {
    const size_t rest = count - i < 32 ? count - i : 32;
    chunk_sums[i / 32] = chunk_square_sum(x + i, rest);
    for (size_t j = i; j < i + rest; j += 16) {
      const size_t lanes = i + rest - j < 16 ? i + rest - j : 16;
      store_first(out + j, mul(load_first(x + j, lanes), load_first(weight + j, lanes)), lanes);
    }
  }
}

inline void sum_squares(const float* x, size_t count, float* chunk_sums) {
  for (size_t i = 0; i < count; i += 32) {
    chunk_sums[i / 32] = chunk_square_sum(x + i, count - i < 32 ? count - i : 32);
  }
}

// A chunk of at most 32 elements. Lanes without an element add nothing to either sum.
inline void chunk_moments(const float* x, size_t count, float* sum, float* squares) {
  const size_t first = count < 16 ? count : 16;
  const F32x16 low = load_first(x, first);
  const F32x16 high = load_first(x + first, count - first);
  *sum = sum_lanes(add(low, high));
  const F32x16 mean = broadcast(*sum / static_cast<float>(count));
  alignas(64) float apart[32] = {};
  store_first(apart, sub(low, mean), first);
  store_first(apart + 16, sub(high, mean), count - first);
  const F32x16 low_apart = load(apart);
  const F32x16 high_apart = load(apart + 16);
  *squares = sum_lanes(fma(high_apart, high_apart, fma(low_apart, low_apart, zero())));
}

inline void sum_moments(const float* x, size_t count, float* chunk_sums, float* chunk_squares) {
  for (size_t i = 0; i < count; i += 32) {
    const size_t rest = count - i < 32 ? count - i : 32;
    chunk_moments(x + i, rest, chunk_sums + i / 32, chunk_squares + i / 32);
  }
}

}  // namespace
}  // namespace lockstep
