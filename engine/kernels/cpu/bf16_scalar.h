// The operations of the small vector type that products with bf16 activations need, as plain
// arrays: the definition that the other bf16_*.h match bit for bit. Beside lanes_scalar.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/tensor/format.h"

namespace lockstep {
namespace {

// See bf16_avx512.h. What is called for every column of a block is not inlined: 32 copies in every
// kernel would only cost time to compile.
constexpr size_t kBf16Tokens = 1;
constexpr size_t kBf16Panels = 1;
// Groups of a block whose unpacking is written out: none, or compiling takes minutes.
constexpr int kUnrolledGroups = 1;

// Byte kByte, at most 15, of each lane, less kOffset.
template <unsigned kByte, int kOffset>
[[gnu::noinline]] inline F32x16 nibble_to_float(Bytes a) {
  return to_float(sub(unsigned_byte<kByte>(a), broadcast_int(kOffset)));
}
// NaNs replaced by one that round_bf16() keeps, here and in what it is multiplied into.
inline F32x16 roundable(F32x16 a) {
  return each_lane([&](size_t i) { return std::isnan(a.v[i]) ? std::nanf("") : a.v[i]; });
}
// To the nearest bf16, halves to even.
[[gnu::noinline]] inline F32x16 round_bf16(F32x16 a) {
  return each_lane([&](size_t i) { return bf16_to_float(float_to_bf16(a.v[i])); });
}

}  // namespace
}  // namespace lockstep
