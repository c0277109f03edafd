// The operations of the small vector type that attention in bf16 needs beyond lanes_avx512.h and
// bf16_avx512bf16.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/bf16_avx512bf16.h"

namespace lockstep {
namespace {

// As bf16: for each lane `first`, then `second`. 64 bytes, aligned. Numbers below the normal ones
// become zero.
inline void store_pairs(std::byte* p, F32x16 first, F32x16 second) {
  const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second.v, first.v));
  _mm512_store_si512(p, interleave_columns(halves));
}

// As store_pairs(), from 16 elements each that are bf16 already.
inline void store_stored_pairs(std::byte* p, const uint16_t* first, const uint16_t* second) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second));
  _mm512_store_si512(p, interleave_columns(_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1)));
}

// Turns a square of 16 rows of 16 pairs around: pair j of row i becomes pair i of row j. Rows of
// 64 bytes, aligned.
inline void turn_pairs(const uint16_t (&rows)[16][32], uint16_t* out) {
  __m512i pairs[16];  // of two rows, in turns
  __m512i quads[16];  // 4 i + j: of rows 4 i to 4 i + 3, their pairs j, 4 + j, 8 + j and 12 + j
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    const __m512i first = _mm512_load_si512(rows[i]);
    const __m512i second = _mm512_load_si512(rows[i + 1]);
    pairs[i] = _mm512_unpacklo_epi32(first, second);
    pairs[i + 1] = _mm512_unpackhi_epi32(first, second);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i upper_low = _mm512_shuffle_i32x4(quads[j], quads[4 + j], 0x44);
    const __m512i upper_high = _mm512_shuffle_i32x4(quads[j], quads[4 + j], 0xEE);
    const __m512i lower_low = _mm512_shuffle_i32x4(quads[8 + j], quads[12 + j], 0x44);
    const __m512i lower_high = _mm512_shuffle_i32x4(quads[8 + j], quads[12 + j], 0xEE);
    _mm512_store_si512(out + 32 * j, _mm512_shuffle_i32x4(upper_low, lower_low, 0x88));
    _mm512_store_si512(out + 32 * (4 + j), _mm512_shuffle_i32x4(upper_low, lower_low, 0xDD));
    _mm512_store_si512(out + 32 * (8 + j), _mm512_shuffle_i32x4(upper_high, lower_high, 0x88));
    _mm512_store_si512(out + 32 * (12 + j), _mm512_shuffle_i32x4(upper_high, lower_high, 0xDD));
  }
}

// Whether one of 32 bf16 is no finite number.
inline bool any_not_finite(const uint16_t* p) {
  const __m512i exponent = _mm512_set1_epi16(0x7F80);
  return _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_loadu_si512(p), exponent), exponent) != 0;
}

// Rounds to bf16, nearest even; numbers below the normal ones become zero. 32 of them in order.
inline void store_rounded(uint16_t* p, F32x16 first, F32x16 second) {
  _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second.v, first.v)));
}
// The same of numbers that are bf16.
inline void store_upper_halves(void* p, F32x16 first, F32x16 second) {
  const __m512i odd =
      _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                       25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  _mm512_storeu_si512(p, _mm512_permutex2var_epi16(_mm512_castps_si512(first.v), odd,
                                                   _mm512_castps_si512(second.v)));
}

// `a` less the greatest integer that is not above it, rounded down; 0 of an infinity.
inline F32x16 fraction(F32x16 a) {
  return {_mm512_reduce_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}
// a * 2^(the greatest integer that is not above n), 0 below the normal numbers where the processor
// is in that mode.
inline F32x16 scale_by_floor(F32x16 a, F32x16 n) {
  return {_mm512_scalef_ps(a.v, n.v)};
}

// Whether a lane of `a` is anything but 1.
inline bool any_not_one(F32x16 a) {
  return _mm512_cmp_ps_mask(a.v, _mm512_set1_ps(1.0F), _CMP_NEQ_UQ) != 0;
}

}  // namespace
}  // namespace lockstep
