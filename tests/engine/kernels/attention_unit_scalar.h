// The operations of attention_unit_avx512.h over lanes_scalar.h: so attention in bf16 runs over a
// model of a matrix unit on any machine. In the mode without numbers below the normal ones.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "engine/tensor/format.h"

namespace lockstep {
namespace {

inline uint16_t normal_bf16(float x) {
  return float_to_bf16(std::fabs(x) < FLT_MIN ? std::copysign(0.0F, x) : x);
}

inline void store_bf16_pair(std::byte* p, size_t pair, uint16_t first, uint16_t second) {
  const uint16_t both[2] = {first, second};
  __builtin_memcpy(p + pair * sizeof both, both, sizeof both);
}

inline void store_pairs(std::byte* p, F32x16 first, F32x16 second) {
  for (size_t i = 0; i < 16; ++i) {
    store_bf16_pair(p, i, normal_bf16(first.v[i]), normal_bf16(second.v[i]));
  }
}
inline void store_stored_pairs(std::byte* p, const uint16_t* first, const uint16_t* second) {
  for (size_t i = 0; i < 16; ++i) store_bf16_pair(p, i, first[i], second[i]);
}

inline void turn_pairs(const uint16_t (&rows)[16][32], uint16_t* out) {
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < 16; ++j) {
      __builtin_memcpy(out + 32 * j + 2 * i, rows[i] + 2 * j, 2 * sizeof(uint16_t));
    }
  }
}

inline bool any_not_finite(const uint16_t* p) {
  for (size_t i = 0; i < 32; ++i) {
    if ((p[i] & 0x7F80U) == 0x7F80U) return true;
  }
  return false;
}

inline void store_rounded(uint16_t* p, F32x16 first, F32x16 second) {
  for (size_t i = 0; i < 16; ++i) {
    p[i] = normal_bf16(first.v[i]);
    p[i + 16] = normal_bf16(second.v[i]);
  }
}
inline void store_upper_halves(void* p, F32x16 first, F32x16 second) {
  uint16_t halves[32];
  for (size_t i = 0; i < 16; ++i) {
    halves[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(first.v[i]) >> 16U);
    halves[i + 16] = static_cast<uint16_t>(std::bit_cast<uint32_t>(second.v[i]) >> 16U);
  }
  __builtin_memcpy(p, halves, sizeof halves);
}

// Not to be inlined: a compiler knows nothing of the mode.
[[gnu::noinline]] inline void subtract_whole(const float* a, const float* whole, float* out) {
  for (size_t i = 0; i < 16; ++i) out[i] = std::isinf(a[i]) ? 0.0F : a[i] - whole[i];
}

inline F32x16 fraction(F32x16 a) {
  F32x16 whole;
  for (size_t i = 0; i < 16; ++i) {
    if (std::fabs(a.v[i]) < FLT_MIN) a.v[i] = 0.0F;
    whole.v[i] = std::floor(a.v[i]);
  }
  F32x16 result;
  const unsigned mode = _mm_getcsr();
  _mm_setcsr((mode & ~unsigned{_MM_ROUND_MASK}) | _MM_ROUND_DOWN);
  subtract_whole(a.v, whole.v, result.v);
  _mm_setcsr(mode);
  return result;
}

// Powers down to -infinity.
inline F32x16 scale_by_floor(F32x16 a, F32x16 n) {
  return each_lane([&](size_t i) {
    if (std::isnan(n.v[i])) return n.v[i];
    const int power = n.v[i] < -1000.0F ? -1000 : static_cast<int>(std::floor(n.v[i]));
    const double result = std::ldexp(static_cast<double>(a.v[i]), power);
    return std::fabs(result) < static_cast<double>(FLT_MIN) ? 0.0F : static_cast<float>(result);
  });
}

inline bool any_not_one(F32x16 a) {
  for (const float each : a.v) {
    if (each != 1.0F) return true;
  }
  return false;
}

}  // namespace
}  // namespace lockstep
