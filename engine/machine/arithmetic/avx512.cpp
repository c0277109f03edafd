#include <immintrin.h>

#include "engine/machine/arithmetic/loops.h"

namespace lockstep {

void avx512_f32(size_t rounds) {
  __m512 sums[kVectorChains] = {};
  __m512 a = _mm512_set1_ps(1.0F);
  const __m512 b = _mm512_set1_ps(0.5F);
  for (size_t round = 0; round < rounds; ++round) {
    asm volatile("" : "+v"(a));
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(a, b, sum);
    for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  }
}

void avx512_int8(size_t rounds) {
  __m512i sums[kVectorChains] = {};
  __m512i a = _mm512_set1_epi8(1);
  const __m512i b = _mm512_set1_epi8(2);
  for (size_t round = 0; round < rounds; ++round) {
    asm volatile("" : "+v"(a));
    for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
    for (__m512i& sum : sums) asm volatile("" : "+v"(sum));
  }
}

}  // namespace lockstep
