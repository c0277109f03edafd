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

// At most 16 columns, from `column` on. All is read before anything is stored.
inline void convolve_lanes(const ConvolutionRow& row, size_t column, size_t lanes, float* out) {
  F32x16 input = load_first(row.x + column, lanes);
  if (row.before != nullptr) input = mul(load_first(row.before + column, lanes), input);
  F32x16 sum = row.bias == nullptr ? zero() : load_first(row.bias + column, lanes);
  const float* factors = row.factors + column;
  for (size_t tap = 0; tap + 1 < row.taps; ++tap, factors += row.factor_stride) {
    if (row.earlier[tap] == nullptr) continue;
    sum = fma(load_first(factors, lanes), load_first(row.earlier[tap] + column, lanes), sum);
  }
  sum = fma(load_first(factors, lanes), input, sum);
  if (row.behind != nullptr) sum = mul(load_first(row.behind + column, lanes), sum);
  store_first(row.input + column, input, lanes);
  store_first(out + column, sum, lanes);
}

inline void convolve(const ConvolutionRow& row, float* out) {
  for (size_t column = 0; column < row.count; column += 16) {
    const size_t left = row.count - column;
    convolve_lanes(row, column, left < 16 ? left : 16, out);
  }
}

}  // namespace
}  // namespace lockstep
