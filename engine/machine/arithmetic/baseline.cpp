#include <emmintrin.h>

#include "engine/machine/arithmetic/loops.h"

namespace lockstep {

void baseline_f32(size_t rounds) {
  __m128 sums[kVectorChains] = {};
  __m128 a = _mm_set1_ps(1.0F);
  const __m128 b = _mm_set1_ps(0.5F);
  for (size_t round = 0; round < rounds; ++round) {
    asm volatile("" : "+x"(a));  // so that no product is taken out of the loop
    for (__m128& sum : sums) sum = _mm_add_ps(sum, _mm_mul_ps(a, b));
    for (__m128& sum : sums) asm volatile("" : "+x"(sum));
  }
}

}  // namespace lockstep
