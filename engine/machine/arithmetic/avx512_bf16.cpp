#include <immintrin.h>

#include "engine/machine/arithmetic/loops.h"

namespace lockstep {

void avx512_bf16(size_t rounds) {
  __m512 sums[kVectorChains] = {};
  const __m512 ones = _mm512_set1_ps(1.0F);
  __m512bh a = _mm512_cvtne2ps_pbh(ones, ones);
  const __m512bh b = a;
  for (size_t round = 0; round < rounds; ++round) {
    asm volatile("" : "+v"(a));
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, a, b);
    for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  }
}

}  // namespace lockstep
