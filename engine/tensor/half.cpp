#include <bit>

#include "engine/tensor/format.h"

// Integer arithmetic wherever a float would be subnormal: the result must not depend on whether the
// calling thread flushes subnormal numbers to zero.
namespace lockstep {
namespace {

constexpr uint32_t kFloatInfinity = 0x7f800000;

}  // namespace

float half_to_float(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00) {  // infinity, or NaN, which becomes quiet as the hardware makes it
    const uint32_t payload = (magnitude & 0x3ffu) << 13;
    return std::bit_cast<float>(sign | kFloatInfinity | payload | (payload != 0 ? 0x400000u : 0u));
  }
  if (magnitude >= 0x0400) {  // normal: the exponent's bias goes from 15 to 127
    return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  }
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half = 0;
  if (magnitude > kFloatInfinity) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520, half way from the largest half to 2^16
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14, the least normal half
    const uint32_t odd = (magnitude >> 13) & 1u;
    half = (magnitude + 0xfffu + odd - (112u << 23)) >> 13;
  } else {
    // The spacing of floats from 0.5 on is 2^-24, that of subnormal halves: the sum rounds for us.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f);
  }
  return static_cast<uint16_t>(sign | half);
}

float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > kFloatInfinity) {
    return static_cast<uint16_t>((bits >> 16) | 0x40u);
  }
  const uint32_t odd = (bits >> 16) & 1u;
  return static_cast<uint16_t>((bits + 0x7fffu + odd) >> 16);
}

}  // namespace lockstep
