// What products through a matrix unit want of the small vector type, for AVX-512 with its bf16
// instructions, which every machine with AMX has. Beside bf16_avx512.h.
#pragma once

#include "engine/kernels/cpu/bf16_avx512.h"

namespace lockstep {
namespace {

// As bf16: for each lane `first`, then `second`. 64 bytes, aligned. Numbers below the normal ones
// become zero.
inline void store_pairs(std::byte* p, F32x16 first, F32x16 second) {
  const __m512i interleaved =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second.v, first.v));
  _mm512_store_si512(p, _mm512_permutexvar_epi16(interleaved, halves));
}

}  // namespace
}  // namespace lockstep
