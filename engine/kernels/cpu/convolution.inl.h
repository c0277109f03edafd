// The causal convolution; see kernel_table.h. Written over the small vector type, and without
// functions of the standard library (elementwise.inl.h).
//
// A lane owns a column. Of a token few columns are at hand, and their factors and inputs in the
// first cache: what is multiplied with x costs less than writing it to memory and reading it again
// would.
#pragma once

#include <cstddef>

#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// All lanes of a vector, or the first few. What all of one token's lanes store the next token loads
// at once; a load of some lanes would wait until the store is in the cache.
struct WholeVector {
  F32x16 read(const float* from) const { return load(from); }
  void write(float* to, F32x16 a) const { store(to, a); }
};
struct FirstLanes {
  size_t count;
  F32x16 read(const float* from) const { return load_first(from, count); }
  void write(float* to, F32x16 a) const { store_first(to, a, count); }
};

// At most 16 columns, from `column` on. All is read before anything is stored.
template <typename Lanes>
[[gnu::always_inline]] inline void convolve_lanes(const ConvolutionRow& row, size_t column,
                                                  Lanes lanes, float* out) {
  F32x16 input = lanes.read(row.x + column);
  if (row.before != nullptr) input = mul(lanes.read(row.before + column), input);
  F32x16 sum = row.bias == nullptr ? zero() : lanes.read(row.bias + column);
  const float* factors = row.factors + column;
  for (size_t tap = 0; tap + 1 < row.taps; ++tap, factors += row.factor_stride) {
    if (row.earlier[tap] == nullptr) continue;
    sum = fma(lanes.read(factors), lanes.read(row.earlier[tap] + column), sum);
  }
  sum = fma(lanes.read(factors), input, sum);
  if (row.behind != nullptr) sum = mul(lanes.read(row.behind + column), sum);
  lanes.write(row.input + column, input);
  lanes.write(out + column, sum);
}

inline void convolve(const ConvolutionRow& row, float* out) {
  size_t column = 0;
  for (; column + 16 <= row.count; column += 16) {
    convolve_lanes(row, column, WholeVector(), out);
  }
  if (column < row.count) convolve_lanes(row, column, FirstLanes{row.count - column}, out);
}

}  // namespace
}  // namespace lockstep
