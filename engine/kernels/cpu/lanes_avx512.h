// The small vector type that the kernels are written over: 16 lanes, one per row or element. This
// one is a zmm register. The three lanes_*.h give the same bits for every operation.
// Included by cpu/avx512.cpp alone.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace lockstep {
namespace {

struct F32x16 {
  __m512 v;
};

// A tile of attention: its most rows, and the most sums held in vectors at once. Of the 32
// registers this leaves four for what is added and four for what it is multiplied by.
inline constexpr size_t kAttentionTileRows = 6;
inline constexpr size_t kAttentionTileSums = 24;
// The columns of a delta net's state that several tokens walk over at once, in vectors. Each has
// two sums, and a chain of either waits for four additions: two vectors hide it.
inline constexpr size_t kDeltaVectors = 2;
// Rows of a scan's state that stay in registers while tokens go by.
inline constexpr size_t kScanRows = 16;

// The same value, read from memory as a register: see lanes_avx2.h.
inline F32x16 read_whole(const F32x16& a) {
  return a;
}
inline F32x16 zero() {
  return {_mm512_setzero_ps()};
}
inline F32x16 broadcast(float x) {
  return {_mm512_set1_ps(x)};
}
inline F32x16 load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline void store(float* p, F32x16 a) {
  _mm512_storeu_ps(p, a.v);
}
inline F32x16 add(F32x16 a, F32x16 b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline F32x16 sub(F32x16 a, F32x16 b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline F32x16 mul(F32x16 a, F32x16 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline F32x16 div(F32x16 a, F32x16 b) {
  return {_mm512_div_ps(a.v, b.v)};
}
// a * b + c, rounded once.
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
// a > b ? a : b, lane by lane (b where either is NaN).
inline F32x16 max(F32x16 a, F32x16 b) {
  return {_mm512_max_ps(a.v, b.v)};
}
// a < b ? a : b.
inline F32x16 min(F32x16 a, F32x16 b) {
  return {_mm512_min_ps(a.v, b.v)};
}
// a < b ? less : otherwise (otherwise where either is NaN).
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 less, F32x16 otherwise) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), otherwise.v, less.v)};
}
inline F32x16 abs(F32x16 a) {
  return {_mm512_abs_ps(a.v)};
}
// Nearest integer, halves to even.
inline F32x16 round(F32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for integral n in [-126, 127], both factors normal.
inline F32x16 scale_by_power(F32x16 a, F32x16 n) {
  return {_mm512_scalef_ps(a.v, n.v)};
}
inline F32x16 load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline F32x16 load_bf16(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline F32x16 load_int8(const std::byte* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// The lower (half 0) or upper (half 1) 4 bits of 16 bytes, less 8.
inline F32x16 load_nibbles(const std::byte* p, size_t half) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512 numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  // The permutation heeds the lowest 4 bits of an index alone.
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(half * 4));
  return {_mm512_permutexvar_ps(_mm512_srl_epi32(bytes, shift), numbers)};
}
// Rounds to nearest even; for storing.
inline void store_half(uint16_t* p, F32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void store_bf16(uint16_t* p, F32x16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i to_add = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, to_add), 16);
  const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, quiet)));
}
// The first `count` (0 to 16) lanes; the others are zero. Reads and writes no further.
inline F32x16 load_first(const float* p, size_t count) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1U), p)};
}
inline void store_first(float* p, F32x16 a, size_t count) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1U << count) - 1U), a.v);
}
// The lanes added pairwise: 8, then 4, 2, 1 apart.
inline float sum_lanes(F32x16 a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float max_lanes(F32x16 a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace
}  // namespace lockstep
