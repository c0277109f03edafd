// The operations of the small vector type that unpacking weights to second operands of a matrix
// unit needs, for AVX-512 with its bf16 and VBMI instructions, which every machine with AMX has.
// Beside bf16_avx512bf16.h, and as there: the operands_*.h give the same bits.
//
// Two columns of 16 rows lie in two vectors, in the order in which an operand has them: lane 2i and
// lane 2i + 1 of the first are the first and the second column of row i, of the other those of row
// 8 + i.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace lockstep {
namespace {

// Two columns.
struct ColumnPair {
  F32x16 upper;  // rows 0 to 7
  F32x16 lower;  // rows 8 to 15
};

// The source of each byte of a vector, so that it spreads bytes 2 pair and 2 pair + 1 of lanes 8
// half to 8 half + 7: to all four bytes of a lane, of which one is taken.
struct SpreadIndex {
  alignas(64) uint8_t bytes[64];
  constexpr SpreadIndex(unsigned pair, unsigned half) : bytes() {
    for (unsigned i = 0; i < 64; ++i) {
      const unsigned lane = i / 4;
      bytes[i] = static_cast<uint8_t>(4 * (8 * half + lane / 2) + 2 * pair + lane % 2);
    }
  }
};
template <unsigned kPair, unsigned kHalf>
inline constexpr SpreadIndex kSpreadIndex{kPair, kHalf};

// A byte becomes the float kFloatBase<kWide> + byte by being put into its mantissa. Bytes are at
// most 127; or kWide, from offset_signed(), which adds 128.
template <bool kWide>
inline constexpr float kFloatBase = kWide ? 32768.0F : 128.0F;

template <unsigned kPair, unsigned kHalf, bool kWide>
inline F32x16 spread(Bytes a) {
  const __m512i base = _mm512_castps_si512(_mm512_set1_ps(kFloatBase<kWide>));
  const __mmask64 place = kWide ? 0x2222222222222222U : 0x4444444444444444U;
  const __m512i index = _mm512_load_si512(kSpreadIndex<kPair, kHalf>.bytes);
  return {_mm512_castsi512_ps(_mm512_mask_permutexvar_epi8(base, place, index, a.v))};
}
// Bytes 2 kPair and 2 kPair + 1 of each lane.
template <unsigned kPair, bool kWide>
inline ColumnPair spread_pair(Bytes a) {
  return {spread<kPair, 0, kWide>(a), spread<kPair, 1, kWide>(a)};
}
// Twice the same column.
inline ColumnPair twice(F32x16 a) {
  const __m512i upper = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i lower =
      _mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
  return {{_mm512_permutexvar_ps(upper, a.v)}, {_mm512_permutexvar_ps(lower, a.v)}};
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
inline ColumnPair fma(const ColumnPair& a, const ColumnPair& b, const ColumnPair& c) {
  return {fma(a.upper, b.upper, c.upper), fma(a.lower, b.lower, c.lower)};
}

// Whether all lanes are finite numbers or NaNs.
inline bool none_infinite(F32x16 a) {
  return _mm512_fpclass_ps_mask(a.v, 0x18) == 0;
}
// Whether no lane is a zero, an infinite number or a NaN.
inline bool all_finite_and_not_zero(F32x16 a) {
  return _mm512_fpclass_ps_mask(a.v, 0x9F) == 0;
}
// Whether a + b is exact in all lanes, and none of them a NaN.
inline bool sums_are_exact(F32x16 a, F32x16 b) {
  const __m512 sum = _mm512_add_ps(a.v, b.v);
  const __mmask16 other = _mm512_cmp_ps_mask(_mm512_sub_ps(sum, a.v), b.v, _CMP_NEQ_UQ);
  return (other | _mm512_cmp_ps_mask(_mm512_sub_ps(sum, b.v), a.v, _CMP_NEQ_UQ)) == 0;
}

// As bf16, the first column of a row before the second. 64 bytes, aligned. Numbers below the normal
// ones become zero.
inline void store_pairs(std::byte* p, const ColumnPair& columns) {
  const __m512bh halves = _mm512_cvtne2ps_pbh(columns.lower.v, columns.upper.v);
  _mm512_store_si512(p, reinterpret_cast<__m512i>(halves));
}

// Two columns of 16 numbers of 16 bits, one after the other.
struct HalfColumns {
  __m512i v;
};
// Pairs of bf16, as an operand has them.
struct Bf16Pairs {
  __m512i v;
};
struct SplitPairs {
  Bf16Pairs high;
  Bf16Pairs rest;
};

inline HalfColumns load_two_columns(const uint16_t* p) {
  return {_mm512_loadu_si512(p)};
}
inline HalfColumns load_one_column(const uint16_t* p) {
  return {_mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline HalfColumns no_columns() {
  return {_mm512_setzero_si512()};
}
// Interleaves numbers that are bf16.
inline Bf16Pairs interleave(HalfColumns columns) {
  return {interleave_columns(columns.v)};
}
// Splits halves: rounded to bf16, and what that leaves, whose bits beyond the upper 16 are zero.
inline SplitPairs split_halves(HalfColumns columns) {
  const __m512 first = _mm512_cvtph_ps(_mm512_castsi512_si256(columns.v));
  const __m512 second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(columns.v, 1));
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
  const __m512i high =
      interleave_columns(reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
  const __m512 first_rest = _mm512_sub_ps(first, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16)));
  const __m512 second_rest =
      _mm512_sub_ps(second, _mm512_castsi512_ps(_mm512_and_si512(high, upper)));
  const __m512i rest = _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(first_rest), 16),
                                       _mm512_and_si512(_mm512_castps_si512(second_rest), upper));
  return {{high}, {rest}};
}
inline void store_pairs(std::byte* p, Bf16Pairs pairs) {
  _mm512_store_si512(p, pairs.v);
}

// The pairs that store_pairs() would store, in a register.
inline WeightPair weight_pair(const ColumnPair& columns) {
  return {_mm512_cvtne2ps_pbh(columns.lower.v, columns.upper.v)};
}
inline WeightPair weight_pair(Bf16Pairs pairs) {
  return {reinterpret_cast<__m512bh>(pairs.v)};
}

}  // namespace
}  // namespace lockstep
