// The operations of the small vector type that products with bf16 activations need, for AVX-512
// with its bf16 instructions, which every machine with AMX has. Beside bf16_avx512.h.
#pragma once

#include "engine/kernels/cpu/bf16_avx512.h"

namespace lockstep {
namespace {

// From two columns of 16 rows to 16 rows of two columns.
inline __m512i interleave_columns(__m512i columns) {
  const __m512i interleaved =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(interleaved, columns);
}

// Pairs of columns, as VDPBF16PS multiplies them: the second column's products are added first.
struct WeightPair {
  __m512bh v;
};
struct InputPair {
  __m512bh v;
};

inline WeightPair load_weight_pair(const uint16_t* p) {
  return {reinterpret_cast<__m512bh>(interleave_columns(_mm512_loadu_si512(p)))};
}
// The pair of a last column without a second.
inline WeightPair load_last_weights(const uint16_t* p) {
  const __m256i column = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {reinterpret_cast<__m512bh>(_mm512_cvtepu16_epi32(column))};
}
inline InputPair broadcast_pair(uint32_t pair) {
  return {reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair)))};
}
inline InputPair broadcast_pair(const std::byte* p) {
  uint32_t pair = 0;
  __builtin_memcpy(&pair, p, sizeof pair);
  return broadcast_pair(pair);
}
inline F32x16 dot(WeightPair weights, InputPair inputs, F32x16 sum) {
  return {_mm512_dpbf16_ps(sum.v, weights.v, inputs.v)};
}

}  // namespace
}  // namespace lockstep
