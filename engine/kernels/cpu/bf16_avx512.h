// The operations of the small vector type that products with bf16 activations need, for AVX-512
// without its bf16 instructions. Beside lanes_avx512.h, and as there: the bf16_*.h give the same
// bits.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace lockstep {
namespace {

// Tokens and panels that are multiplied side by side: two chains each, 24 of 32 registers. A load
// of weights then serves six tokens, one of activations two panels.
constexpr size_t kBf16Tokens = 6;
constexpr size_t kBf16Panels = 2;
// Groups of a block whose unpacking is written out, so that its vectors stay in registers.
constexpr int kUnrolledGroups = 8;

// Byte kByte, at most 15, of each lane, less kOffset: found in a table by its lowest bits, whatever
// is above them.
template <unsigned kByte, int kOffset>
inline F32x16 nibble_to_float(Bytes a) {
  const __m512 table =
      _mm512_setr_ps(0 - kOffset, 1 - kOffset, 2 - kOffset, 3 - kOffset, 4 - kOffset, 5 - kOffset,
                     6 - kOffset, 7 - kOffset, 8 - kOffset, 9 - kOffset, 10 - kOffset, 11 - kOffset,
                     12 - kOffset, 13 - kOffset, 14 - kOffset, 15 - kOffset);
  const __m512i index = kByte == 0 ? a.v : _mm512_srli_epi32(a.v, 8 * kByte);
  return {_mm512_permutexvar_ps(index, table)};
}
// NaNs replaced by one that round_bf16() keeps, here and in what it is multiplied into.
inline F32x16 roundable(F32x16 a) {
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000));
  return {_mm512_mask_mov_ps(a.v, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), nan)};
}
// To the nearest bf16, halves to even.
inline F32x16 round_bf16(F32x16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i sum = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF));
  const __m512i sum_of_odd = _mm512_mask_sub_epi32(sum, odd, sum, _mm512_set1_epi32(-1));
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
  return {_mm512_castsi512_ps(_mm512_and_si512(sum_of_odd, upper))};
}

}  // namespace
}  // namespace lockstep
