// The scales of a format's quants, as a GpuMatrix has them. Included after gpu_code.h.
#pragma once

#include "engine/kernels/gpu_tile.h"

namespace lockstep {
namespace {

// What a format's quants are offset by.
template <Format kFormat>
constexpr uint32_t quant_offset() {
  if (kFormat == Format::kQ4_0) return 8;
  if (kFormat == Format::kQ5_0) return 16;
  if (kFormat == Format::kQ6_K) return 32;
  return 0;
}

struct Scale {
  float scale;
  float minimum;  // what is added for each x
};

GPU_FUNCTION float half_of(uint32_t word, unsigned index) {
  return from_half(static_cast<uint16_t>(word >> (16 * index)));
}

// Scale `index` of a row and unit, whose scales lie at `scales`: of 32 columns, of Q6_K 16, whose
// factor lies at `factor`.
template <Format kFormat>
GPU_FUNCTION Scale scale_of(const std::byte* scales, const std::byte* factor, unsigned index) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  if constexpr (kLayout.scale_bytes == 4) {
    return {half_of(load_4(scales), index), 0};
  } else if constexpr (kFormat == Format::kQ6_K) {
    const auto scale = static_cast<int8_t>(load_4(scales + index / 4 * 4) >> (8 * (index % 4)));
    const auto half = *reinterpret_cast<const uint16_t*>(factor);
    return {multiply(from_half(half), static_cast<float>(scale)), 0};
  } else if constexpr (kLayout.scale_bytes == 8) {
    const uint32_t word = load_8(scales).words[index];
    return {half_of(word, 0), half_of(word, 1)};
  } else {
    // 12 bytes after the two halves: of sub-blocks 0 to 3 the scales and then the minimums, whose
    // upper two bits are those of sub-blocks 4 to 7; then these's lower four bits.
    const Words4 words = load_16(scales);
    const unsigned shift = 8 * (index % 4);
    uint32_t scale = words.words[1] >> shift;
    uint32_t minimum = words.words[2] >> shift;
    if (index < 4) {
      scale &= 63U;
      minimum &= 63U;
    } else {
      const uint32_t lower = words.words[3] >> shift;
      scale = (lower & 15U) | (scale >> 2U & 48U);
      minimum = (lower >> 4U & 15U) | (minimum >> 2U & 48U);
    }
    return {multiply(half_of(words.words[0], 0), static_cast<float>(scale)),
            -multiply(half_of(words.words[0], 1), static_cast<float>(minimum))};
  }
}

}  // namespace
}  // namespace lockstep
