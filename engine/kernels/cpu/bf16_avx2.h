// The operations of the small vector type that products with bf16 activations need, for AVX2.
// Beside lanes_avx2.h, and as there: the bf16_*.h give the same bits. Included by cpu/avx2.cpp
// alone.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace lockstep {
namespace {

// See bf16_avx512.h. Two chains of two registers for each token, of 16 in all.
constexpr size_t kBf16Tokens = 3;
constexpr size_t kBf16Panels = 1;
// Groups of a block whose unpacking is written out, so that its vectors stay in registers.
constexpr int kUnrolledGroups = 8;

inline __m256 roundable(__m256 a) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
  return _mm256_blendv_ps(a, nan, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
inline __m256 round_bf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000U));
  return _mm256_castsi256_ps(_mm256_and_si256(sum, upper));
}

// Byte kByte, at most 15, of each lane, less kOffset.
template <unsigned kByte, int kOffset>
inline F32x16 nibble_to_float(Bytes a) {
  return to_float(sub(unsigned_byte<kByte>(a), broadcast_int(kOffset)));
}
// NaNs replaced by one that round_bf16() keeps, here and in what it is multiplied into.
inline F32x16 roundable(F32x16 a) {
  return {roundable(a.low), roundable(a.high)};
}
// To the nearest bf16, halves to even.
inline F32x16 round_bf16(F32x16 a) {
  return {round_bf16(a.low), round_bf16(a.high)};
}

}  // namespace
}  // namespace lockstep
