// The small vector type that the kernels are written over: 16 lanes, one per row or element. This
// one is a pair of ymm registers. The three lanes_*.h give the same bits for every operation.
// Included by cpu/avx2.cpp alone.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace lockstep {
namespace {

struct F32x16 {
  __m256 low;   // lanes 0 to 7
  __m256 high;  // lanes 8 to 15
};

// See lanes_avx512.h. A vector is two of the 16 registers.
inline constexpr size_t kAttentionTileRows = 6;
inline constexpr size_t kAttentionTileSums = 6;
inline constexpr size_t kDeltaVectors = 1;
inline constexpr size_t kScanRows = 4;

// The same value, read from memory as registers: GCC 12 copies the structure in quarters, and what
// is then loaded whole waits until they have been stored.
inline F32x16 read_whole(const F32x16& a) {
  return {a.low, a.high};
}
inline F32x16 zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline F32x16 broadcast(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline F32x16 load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void store(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
inline F32x16 add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline F32x16 sub(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline F32x16 mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline F32x16 div(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
// a * b + c, rounded once.
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
// a > b ? a : b, lane by lane (b where either is NaN).
inline F32x16 max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
// a < b ? a : b.
inline F32x16 min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
// a < b ? less : otherwise (otherwise where either is NaN).
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 less, F32x16 otherwise) {
  return {_mm256_blendv_ps(otherwise.low, less.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_blendv_ps(otherwise.high, less.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
inline F32x16 abs(F32x16 a) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  return {_mm256_and_ps(a.low, mask), _mm256_and_ps(a.high, mask)};
}
// Nearest integer, halves to even.
inline F32x16 round(F32x16 a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.low, kNearest), _mm256_round_ps(a.high, kNearest)};
}
// a * 2^n for integral n in [-126, 127], both factors normal.
inline F32x16 scale_by_power(F32x16 a, F32x16 n) {
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i low = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.low), bias), 23);
  const __m256i high = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.high), bias), 23);
  return {_mm256_mul_ps(a.low, _mm256_castsi256_ps(low)),
          _mm256_mul_ps(a.high, _mm256_castsi256_ps(high))};
}
inline F32x16 load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline F32x16 load_bf16(const uint16_t* p) {
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(low), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16))};
}
inline F32x16 load_int8(const std::byte* p) {
  const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m128i high = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high))};
}
// The lower (half 0) or upper (half 1) 4 bits of 16 bytes, less 8.
inline F32x16 load_nibbles(const std::byte* p, size_t half) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i shifted = _mm_srl_epi16(bytes, _mm_cvtsi32_si128(static_cast<int>(half * 4)));
  const __m128i nibbles = _mm_and_si128(shifted, _mm_set1_epi8(15));
  const __m128i numbers = _mm_sub_epi8(nibbles, _mm_set1_epi8(8));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(numbers, 8)))};
}
// Rounds to nearest even; for storing.
inline void store_half(uint16_t* p, F32x16 a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.low, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.high, kNearest));
}
// The bits of the eight bfloat16, each in 32 bits.
inline __m256i bf16_bits(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i to_add = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, to_add), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, is_nan);
}
inline void store_bf16(uint16_t* p, F32x16 a) {
  const __m256i packed = _mm256_packus_epi32(bf16_bits(a.low), bf16_bits(a.high));
  // The packing works within halves of a register: its quarters come out as 0 2 1 3.
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
// The first `count` (0 to 8) lanes set, for masked loads and stores.
inline __m256i first_lanes_mask(size_t count) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), index);
}
// The first `count` (0 to 16) lanes; the others are zero. Reads and writes no further.
inline F32x16 load_first(const float* p, size_t count) {
  const size_t low = count < 8 ? count : 8;
  return {_mm256_maskload_ps(p, first_lanes_mask(low)),
          _mm256_maskload_ps(p + 8, first_lanes_mask(count - low))};
}
inline void store_first(float* p, F32x16 a, size_t count) {
  const size_t low = count < 8 ? count : 8;
  _mm256_maskstore_ps(p, first_lanes_mask(low), a.low);
  _mm256_maskstore_ps(p + 8, first_lanes_mask(count - low), a.high);
}
// The lanes added pairwise: 8, then 4, 2, 1 apart.
inline float sum_lanes(F32x16 a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float max_lanes(F32x16 a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace
}  // namespace lockstep
