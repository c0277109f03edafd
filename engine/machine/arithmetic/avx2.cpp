#include <immintrin.h>

#include "engine/machine/arithmetic/loops.h"

namespace lockstep {

void avx2_f32(size_t rounds) {
  __m256 sums[kVectorChains] = {};
  __m256 a = _mm256_set1_ps(1.0F);
  const __m256 b = _mm256_set1_ps(0.5F);
  for (size_t round = 0; round < rounds; ++round) {
    asm volatile("" : "+x"(a));
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(a, b, sum);
    for (__m256& sum : sums) asm volatile("" : "+x"(sum));
  }
}

// Bytes to pairs in 16 bits, those to fours in 32, and the sum.
void avx2_int8(size_t rounds) {
  __m256i sums[kVectorChains] = {};
  __m256i a = _mm256_set1_epi8(1);
  const __m256i b = _mm256_set1_epi8(2);
  const __m256i ones = _mm256_set1_epi16(1);
  for (size_t round = 0; round < rounds; ++round) {
    for (__m256i& sum : sums) {
      asm volatile("" : "+x"(a));  // each product is its own
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
      asm volatile("" : "+x"(sum));
    }
  }
}

}  // namespace lockstep
