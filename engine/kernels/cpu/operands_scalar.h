// The operations of the small vector type that unpacking weights to second operands of a matrix
// unit needs, as plain arrays: the definition that operands_avx512.h matches bit for bit. Beside
// bf16_scalar.h.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/tensor/format.h"

namespace lockstep {
namespace {

// Two columns; see operands_avx512.h.
struct ColumnPair {
  F32x16 upper;  // rows 0 to 7
  F32x16 lower;  // rows 8 to 15
};

// See operands_avx512.h.
template <bool kWide>
inline constexpr float kFloatBase = kWide ? 32768.0F : 128.0F;

// Bytes 2 kPair and 2 kPair + 1 of each lane, as floats with the base added; of the signed ones
// that are kWide, the base and 128.
template <unsigned kPair, bool kWide>
[[gnu::noinline]] inline ColumnPair spread_pair(Bytes a) {
  const auto lane = [&](size_t row, size_t column) {
    const uint32_t byte = (a.v[row] >> (8 * (2 * kPair + column))) & 0xFFU;
    return kFloatBase<kWide> + static_cast<float>(kWide ? byte ^ 0x80U : byte);
  };
  return {each_lane([&](size_t i) { return lane(i / 2, i % 2); }),
          each_lane([&](size_t i) { return lane(8 + i / 2, i % 2); })};
}
// Twice the same column.
inline ColumnPair twice(F32x16 a) {
  return {each_lane([&](size_t i) { return a.v[i / 2]; }),
          each_lane([&](size_t i) { return a.v[8 + i / 2]; })};
}

inline ColumnPair sub(const ColumnPair& a, F32x16 b) {
  return {sub(a.upper, b), sub(a.lower, b)};
}
inline ColumnPair mul(const ColumnPair& a, F32x16 b) {
  return {mul(a.upper, b), mul(a.lower, b)};
}
inline ColumnPair mul(const ColumnPair& a, const ColumnPair& b) {
  return {mul(a.upper, b.upper), mul(a.lower, b.lower)};
}
[[gnu::noinline]] inline ColumnPair fma(const ColumnPair& a, const ColumnPair& b,
                                        const ColumnPair& c) {
  return {fma(a.upper, b.upper, c.upper), fma(a.lower, b.lower, c.lower)};
}

// Whether all lanes are finite numbers or NaNs.
inline bool none_infinite(F32x16 a) {
  for (const float value : a.v) {
    if (std::isinf(value)) return false;
  }
  return true;
}
// Whether a + b is exact in all lanes, and none of them a NaN.
inline bool sums_are_exact(F32x16 a, F32x16 b) {
  for (size_t i = 0; i < 16; ++i) {
    const float sum = a.v[i] + b.v[i];
    if (sum - a.v[i] != b.v[i] || sum - b.v[i] != a.v[i]) return false;
  }
  return true;
}

// As bf16, the first column of a row before the second. 64 bytes.
[[gnu::noinline]] inline void store_pairs(std::byte* p, const ColumnPair& columns) {
  for (size_t i = 0; i < 16; ++i) {
    const uint16_t halves[2] = {float_to_bf16(columns.upper.v[i]),
                                float_to_bf16(columns.lower.v[i])};
    std::memcpy(p + i * sizeof halves[0], &halves[0], sizeof halves[0]);
    std::memcpy(p + (16 + i) * sizeof halves[1], &halves[1], sizeof halves[1]);
  }
}

// Two columns of 16 numbers of 16 bits, one after the other.
struct HalfColumns {
  uint16_t v[2][16];
};
// Pairs of bf16, as an operand has them.
struct Bf16Pairs {
  uint16_t v[16][2];
};
struct SplitPairs {
  Bf16Pairs high;
  Bf16Pairs rest;
};

inline HalfColumns load_two_columns(const uint16_t* p) {
  HalfColumns columns;
  std::memcpy(columns.v, p, sizeof columns.v);
  return columns;
}
inline HalfColumns load_one_column(const uint16_t* p) {
  HalfColumns columns = {};
  std::memcpy(columns.v[0], p, sizeof columns.v[0]);
  return columns;
}
inline HalfColumns no_columns() {
  return {};
}
// Interleaves numbers that are bf16.
inline Bf16Pairs interleave(const HalfColumns& columns) {
  Bf16Pairs pairs;
  for (size_t i = 0; i < 16; ++i) {
    pairs.v[i][0] = columns.v[0][i];
    pairs.v[i][1] = columns.v[1][i];
  }
  return pairs;
}
// Splits halves: rounded to bf16, and what that leaves.
inline SplitPairs split_halves(const HalfColumns& columns) {
  SplitPairs pairs;
  for (size_t i = 0; i < 16; ++i) {
    for (size_t column = 0; column < 2; ++column) {
      const float value = half_to_float(columns.v[column][i]);
      const uint16_t high = float_to_bf16(value);
      pairs.high.v[i][column] = high;
      pairs.rest.v[i][column] = float_to_bf16(value - bf16_to_float(high));
    }
  }
  return pairs;
}
inline void store_pairs(std::byte* p, const Bf16Pairs& pairs) {
  std::memcpy(p, pairs.v, sizeof pairs.v);
}

}  // namespace
}  // namespace lockstep
