// The small vector type that the kernels are written over: 16 lanes, one per row or element. This
// one is an array of floats: the definition that the other two lanes_*.h match bit for bit.
// Included by cpu/scalar.cpp alone.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "engine/tensor/format.h"

namespace lockstep {
namespace {

struct F32x16 {
  float v[16];
};

// See lanes_avx512.h; here it is of no consequence.
inline constexpr size_t kAttentionTileRows = 2;
inline constexpr size_t kAttentionTileSums = 4;
inline constexpr size_t kDeltaVectors = 1;
inline constexpr size_t kScanRows = 1;

template <typename Function>
inline F32x16 each_lane(Function function) {
  F32x16 result;
  for (size_t lane = 0; lane < 16; ++lane) result.v[lane] = function(lane);
  return result;
}

inline F32x16 broadcast(float x) {
  return each_lane([&](size_t) { return x; });
}
// See lanes_avx2.h; here it is of no consequence.
inline F32x16 read_whole(const F32x16& a) {
  return a;
}
inline F32x16 zero() {
  return broadcast(0.0F);
}
inline F32x16 load(const float* p) {
  return each_lane([&](size_t i) { return p[i]; });
}
inline void store(float* p, F32x16 a) {
  for (size_t i = 0; i < 16; ++i) p[i] = a.v[i];
}
inline F32x16 add(F32x16 a, F32x16 b) {
  return each_lane([&](size_t i) { return a.v[i] + b.v[i]; });
}
inline F32x16 sub(F32x16 a, F32x16 b) {
  return each_lane([&](size_t i) { return a.v[i] - b.v[i]; });
}
inline F32x16 mul(F32x16 a, F32x16 b) {
  return each_lane([&](size_t i) { return a.v[i] * b.v[i]; });
}
inline F32x16 div(F32x16 a, F32x16 b) {
  return each_lane([&](size_t i) { return a.v[i] / b.v[i]; });
}
// For processors that have the instruction. By four lanes, as the compiler stores them: a wider
// load would wait for two stores.
[[gnu::target("fma"), gnu::noinline]] inline F32x16 fma_by_instruction(const F32x16& a,
                                                                       const F32x16& b,
                                                                       const F32x16& c) {
  F32x16 result;
  for (size_t i = 0; i < 16; i += 4) {
    _mm_storeu_ps(result.v + i, _mm_fmadd_ps(_mm_loadu_ps(a.v + i), _mm_loadu_ps(b.v + i),
                                             _mm_loadu_ps(c.v + i)));
  }
  return result;
}
// a * b + c, rounded once. Without an option for the instruction std::fma() is a call of the
// library for each lane, which takes most of the time of what is computed here.
[[gnu::noinline]] inline F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  if (__builtin_cpu_supports("fma")) return fma_by_instruction(a, b, c);
  return each_lane([&](size_t i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
// a > b ? a : b, lane by lane (b where either is NaN).
inline F32x16 max(F32x16 a, F32x16 b) {
  return each_lane([&](size_t i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
// a < b ? a : b.
inline F32x16 min(F32x16 a, F32x16 b) {
  return each_lane([&](size_t i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
// a < b ? less : otherwise (otherwise where either is NaN).
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 less, F32x16 otherwise) {
  return each_lane([&](size_t i) { return a.v[i] < b.v[i] ? less.v[i] : otherwise.v[i]; });
}
inline F32x16 abs(F32x16 a) {
  return each_lane([&](size_t i) { return std::fabs(a.v[i]); });
}
// Nearest integer, halves to even.
inline F32x16 round(F32x16 a) {
  return each_lane([&](size_t i) { return std::nearbyint(a.v[i]); });
}
// a * 2^n for integral n in [-126, 127], both factors normal.
inline F32x16 scale_by_power(F32x16 a, F32x16 n) {
  return each_lane([&](size_t i) {
    const auto exponent = static_cast<uint32_t>(static_cast<int32_t>(n.v[i]) + 127);
    return a.v[i] * std::bit_cast<float>(exponent << 23U);
  });
}
inline F32x16 load_half(const uint16_t* p) {
  return each_lane([&](size_t i) { return half_to_float(p[i]); });
}
inline F32x16 load_bf16(const uint16_t* p) {
  return each_lane([&](size_t i) { return bf16_to_float(p[i]); });
}
inline F32x16 load_int8(const std::byte* p) {
  return each_lane([&](size_t i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
}
// The lower (half 0) or upper (half 1) 4 bits of 16 bytes, less 8.
inline F32x16 load_nibbles(const std::byte* p, size_t half) {
  return each_lane([&](size_t i) {
    return static_cast<float>(static_cast<int>(static_cast<unsigned>(p[i]) >> (half * 4) & 15U) -
                              8);
  });
}
// Rounds to nearest even; for storing.
inline void store_half(uint16_t* p, F32x16 a) {
  for (size_t i = 0; i < 16; ++i) p[i] = float_to_half(a.v[i]);
}
inline void store_bf16(uint16_t* p, F32x16 a) {
  for (size_t i = 0; i < 16; ++i) p[i] = float_to_bf16(a.v[i]);
}
// The first `count` (0 to 16) lanes; the others are zero. Reads and writes no further.
inline F32x16 load_first(const float* p, size_t count) {
  return each_lane([&](size_t i) { return i < count ? p[i] : 0.0F; });
}
inline void store_first(float* p, F32x16 a, size_t count) {
  for (size_t i = 0; i < count; ++i) p[i] = a.v[i];
}
// The lanes added pairwise: 8, then 4, 2, 1 apart.
inline float sum_lanes(F32x16 a) {
  for (size_t apart = 8; apart > 0; apart /= 2) {
    for (size_t i = 0; i < apart; ++i) a.v[i] = a.v[i] + a.v[i + apart];
  }
  return a.v[0];
}
inline float max_lanes(F32x16 a) {
  for (size_t apart = 8; apart > 0; apart /= 2) {
    for (size_t i = 0; i < apart; ++i) {
      a.v[i] = a.v[i] > a.v[i + apart] ? a.v[i] : a.v[i + apart];
    }
  }
  return a.v[0];
}

}  // namespace
}  // namespace lockstep
