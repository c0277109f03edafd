// Rounding as a GPU rounds.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace lockstep::ptx {

// GPUs give one value for every float of 32 bits that is no number.
inline float canonical(float value) {
  return value == value ? value : std::bit_cast<float>(0x7fffffffu);
}

// NaNs of 64 bits keep their bits.
inline double canonical(double value) {
  return value;
}

// To the nearest, ties to even; what is no number becomes 0x7fff.
inline uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>(value == value ? rounded : 0x7fff);
}
inline float from_bf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

inline uint16_t to_f16(float value) {
  const uint16_t rounded = _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return value == value ? rounded : uint16_t{0x7fff};
}
inline float from_f16(uint16_t bits) {
  return canonical(_cvtsh_ss(bits));
}

// While it lives, the host's vector instructions round so. What they compute has to be loaded and
// stored between its beginning and its end.
class RoundingMode {
 public:
  explicit RoundingMode(uint32_t mode) : before_(_mm_getcsr()) {
    _mm_setcsr((before_ & ~uint32_t{_MM_ROUND_MASK}) | mode);
    asm volatile("" ::: "memory");
  }
  RoundingMode(const RoundingMode&) = delete;
  RoundingMode& operator=(const RoundingMode&) = delete;
  ~RoundingMode() {
    asm volatile("" ::: "memory");
    _mm_setcsr(before_);
  }

 private:
  uint32_t before_;
};

}  // namespace lockstep::ptx
