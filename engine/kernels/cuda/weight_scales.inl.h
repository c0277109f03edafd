// The scales of a format's quants, as a GpuMatrix has them. Included after gpu_code.h.
#pragma once

#include "engine/kernels/gpu_tile.h"

namespace lockstep {
namespace {

// The offset of a format's quants.
template <Format kFormat>
constexpr uint32_t quant_offset() {
  if (kFormat == Format::kQ3_K) return 4;
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

// The scales and minimums of a row of a K block of Q4_K or Q5_K: 8 numbers of 6 bits each, one in a
// byte, and what they are multiplied by.
struct KScales {
  uint32_t scales[2];
  uint32_t minimums[2];
  float scale;
  float minimum;  // negative: what is added
};

// 12 bytes after the two halves: of sub-blocks 0 to 3 the scales and then the minimums, whose upper
// two bits are those of sub-blocks 4 to 7; then these's lower four bits.
GPU_FUNCTION KScales unpack_k_scales(const Words4& words) {
  constexpr uint32_t kAll = 0x3F3F3F3FU;
  constexpr uint32_t kLower = 0x0F0F0F0FU;
  constexpr uint32_t kUpper = 0x30303030U;
  const uint32_t lower = words.words[3];
  return {{words.words[1] & kAll, (lower & kLower) | (words.words[1] >> 2U & kUpper)},
          {words.words[2] & kAll, (lower >> 4U & kLower) | (words.words[2] >> 2U & kUpper)},
          half_of(words.words[0], 0),
          -half_of(words.words[0], 1)};
}

GPU_FUNCTION Scale k_scale(const KScales& row, unsigned index) {
  const unsigned shift = 8 * (index % 4);
  const uint32_t scale = (index < 4 ? row.scales[0] : row.scales[1]) >> shift & 255U;
  const uint32_t minimum = (index < 4 ? row.minimums[0] : row.minimums[1]) >> shift & 255U;
  return {multiply(row.scale, static_cast<float>(scale)),
          multiply(row.minimum, static_cast<float>(minimum))};
}

// Those of a tile's halves: k_scale() of 2 * tile and of the next.
struct TwoScales {
  Scale halves[2];
};
GPU_FUNCTION TwoScales k_tile_scales(const KScales& row, unsigned tile) {
  const unsigned shift = 16 * (tile % 2);
  const uint32_t scales = (tile < 2 ? row.scales[0] : row.scales[1]) >> shift;
  const uint32_t minimums = (tile < 2 ? row.minimums[0] : row.minimums[1]) >> shift;
  const auto byte = [](uint32_t word, unsigned index) {
    return static_cast<float>(word >> (8 * index) & 255U);
  };
  return {{{multiply(row.scale, byte(scales, 0)), multiply(row.minimum, byte(minimums, 0))},
           {multiply(row.scale, byte(scales, 1)), multiply(row.minimum, byte(minimums, 1))}}};
}

// 2^(byte `index` of the word - 128): half of what E8M0 says, as MXFP4's table has twice the
// values.
GPU_FUNCTION float exponent_scale_of(uint32_t word, unsigned index) {
  const uint32_t exponent = word >> (8 * index) & 255U;
  return bits_to_float(exponent < 2 ? 0x00200000U << exponent : (exponent - 1U) << 23U);
}

// Scale `index` of a row of a block of IQ4_XS, or of a unit of Q3_K: a half times a number of 6
// bits, 32 taken away. After the half come 16 bits with the upper two of the eight, and four bytes
// with their lower four.
template <Format kFormat>
constexpr bool kHasSixBitScales = kFormat == Format::kIq4Xs || kFormat == Format::kQ3_K;
GPU_FUNCTION float six_bit_scale(const Words2& words, unsigned index) {
  const uint32_t lower = words.words[1] >> (4 * index) & 15U;
  const uint32_t upper = words.words[0] >> (16 + 2 * index) & 3U;
  const int scale = static_cast<int>(lower | upper << 4U) - 32;
  return multiply(half_of(words.words[0], 0), static_cast<float>(scale));
}

template <Format kFormat, uint32_t kIndex>
constexpr uint32_t kTableWord = gpu_table_word(kFormat, kIndex);

// The entry of a format's table that a quant stands for.
template <Format kFormat>
GPU_FUNCTION int table_entry(uint32_t quant) {
  const uint32_t lower = quant < 4 ? kTableWord<kFormat, 0> : kTableWord<kFormat, 1>;
  const uint32_t upper = quant < 12 ? kTableWord<kFormat, 2> : kTableWord<kFormat, 3>;
  return static_cast<int8_t>((quant < 8 ? lower : upper) >> (8 * (quant % 4)));
}

GPU_FUNCTION float signed_byte(uint32_t word, unsigned index) {
  return static_cast<float>(static_cast<int8_t>(word >> (8 * index)));
}

// The scale and the minimum of a byte of Q2_K. `factor`: the halves that multiply them.
GPU_FUNCTION Scale q2_k_scale(uint32_t byte, float scale_factor, float minimum_factor) {
  return {multiply(scale_factor, static_cast<float>(byte & 15U)),
          multiply(-minimum_factor, static_cast<float>(byte >> 4U & 15U))};
}

// Scale `index` of a row and unit, whose scales lie at `scales`: of 32 columns or 16. Of Q6_K and
// Q2_K their factor lies at `factor`.
template <Format kFormat>
GPU_FUNCTION Scale scale_of(const std::byte* scales, const std::byte* factor, unsigned index) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  if constexpr (kFormat == Format::kMxfp4) {
    return {exponent_scale_of(load_4(scales), index), 0};
  } else if constexpr (kHasSixBitScales<kFormat>) {
    return {six_bit_scale(load_8(scales), index), 0};
  } else if constexpr (kFormat == Format::kQ2_K) {
    const uint32_t halves = load_4(factor);
    return q2_k_scale(load_4(scales + index / 4 * 4) >> (8 * (index % 4)), half_of(halves, 0),
                      half_of(halves, 1));
  } else if constexpr (kLayout.block_scales == 2) {
    return {half_of(load_4(scales + index / 2 * 4), index % 2), 0};
  } else if constexpr (kFormat == Format::kQ6_K) {
    const float d = from_half(*reinterpret_cast<const uint16_t*>(factor));
    return {multiply(d, signed_byte(load_4(scales + index / 4 * 4), index % 4)), 0};
  } else if constexpr (kLayout.block_scales == 4) {
    const uint32_t word = load_4(scales + index * 4);
    return {half_of(word, 0), half_of(word, 1)};
  } else {
    return k_scale(unpack_k_scales(load_16(scales)), index);
  }
}

}  // namespace
}  // namespace lockstep
