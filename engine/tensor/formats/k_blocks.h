// Q4_K, Q5_K, Q6_K: blocks of 256 elements in groups, whose scales (and minimums) are small
// integers. Memory holds them as files do.
#pragma once

#include <array>

#include "engine/tensor/formats/block_bytes.h"

namespace lockstep {

// The eight scales and minima of a K block, six bits each, in 12 bytes.
struct KBlockScales {
  std::array<float, 8> scale = {};
  std::array<float, 8> minimum = {};

  explicit KBlockScales(const std::byte* block) {
    const float factor = read_half(block);
    const float minimum_factor = read_half(block + 2);
    const auto at = [block](size_t index) { return std::to_integer<int>(block[4 + index]); };
    for (size_t index = 0; index < 4; ++index) {
      scale[index] = factor * static_cast<float>(at(index) & 0x3f);
      minimum[index] = minimum_factor * static_cast<float>(at(index + 4) & 0x3f);
      const int low = at(index + 8);
      const int scale_high = (at(index) >> 2) & 0x30;
      const int minimum_high = (at(index + 4) >> 2) & 0x30;
      scale[index + 4] = factor * static_cast<float>((low & 0x0f) | scale_high);
      minimum[index + 4] = minimum_factor * static_cast<float>((low >> 4) | minimum_high);
    }
  }
};

// Two halves (scale, minimum), 12 bytes of eight scales and minima, then nibbles: of each 64
// elements, byte i of 32 holds element i low and element i + 32 high.
struct Q4_K {
  static constexpr BlockPart kParts[] = {{4, 16, BlockUnit::kFourBytes},
                                         {0, 4, BlockUnit::kTwoBytes},
                                         {16, 144, BlockUnit::kFourBytes}};
  static constexpr GpuLayout gpu_layout() { return {256, 144, 4, 4, 0, 16, 0, 16, 16, 0, 0, 32}; }
  static void dequantize(const std::byte* blocks, size_t count, float* values) {
    for (size_t start = 0; start < count; start += kSuperElements, blocks += 144) {
      const KBlockScales scales(blocks);
      const std::byte* nibbles = blocks + 16;
      for (size_t index = 0; index < kSuperElements; ++index) {
        const size_t group = index / 32;
        const int both = std::to_integer<int>(nibbles[group / 2 * 32 + index % 32]);
        const int quant = group % 2 == 0 ? both & 0x0f : both >> 4;
        values[start + index] =
            scales.scale[group] * static_cast<float>(quant) - scales.minimum[group];
      }
    }
  }
  static constexpr FormatTraits kTraits = {
      Format::kQ4_K, "Q4_K", 12, 256, 144, dequantize, {256, 144, kParts, nullptr, dequantize}};
};

// As Q4_K, with the fifth bits before the nibbles: bit g of byte i is that of element i of the
// g-th 32.
struct Q5_K {
  static constexpr BlockPart kParts[] = {{4, 16, BlockUnit::kFourBytes},
                                         {0, 4, BlockUnit::kTwoBytes},
                                         {16, 48, BlockUnit::kFourBytes},
                                         {48, 176, BlockUnit::kFourBytes}};
  static constexpr GpuLayout gpu_layout() { return {256, 176, 4, 4, 1, 48, 16, 16, 16, 0, 0, 32}; }
  static void dequantize(const std::byte* blocks, size_t count, float* values) {
    for (size_t start = 0; start < count; start += kSuperElements, blocks += 176) {
      const KBlockScales scales(blocks);
      const std::byte* high = blocks + 16;
      const std::byte* nibbles = blocks + 48;
      for (size_t index = 0; index < kSuperElements; ++index) {
        const size_t group = index / 32;
        const int both = std::to_integer<int>(nibbles[group / 2 * 32 + index % 32]);
        const int low = group % 2 == 0 ? both & 0x0f : both >> 4;
        const int quant = low | fifth_bit(std::to_integer<uint32_t>(high[index % 32]), group);
        values[start + index] =
            scales.scale[group] * static_cast<float>(quant) - scales.minimum[group];
      }
    }
  }
  static constexpr FormatTraits kTraits = {
      Format::kQ5_K, "Q5_K", 13, 256, 176, dequantize, {256, 176, kParts, nullptr, dequantize}};
};

// Low nibbles, high bit pairs, 16 signed scales, a half scale; offset 32. Of each 128 elements, 64
// bytes hold elements i low and i + 64 high, and 32 bytes the pairs of elements i, i + 32, ...
struct Q6_K {
  static constexpr BlockPart kParts[] = {
      {192, 208, BlockUnit::kFourBytes}, {0, 32, BlockUnit::kFourBytes},
      {128, 160, BlockUnit::kFourBytes}, {32, 64, BlockUnit::kFourBytes},
      {64, 96, BlockUnit::kFourBytes},   {160, 192, BlockUnit::kFourBytes},
      {96, 128, BlockUnit::kFourBytes},  {208, 210, BlockUnit::kTwoBytes}};
  static constexpr GpuLayout gpu_layout() {
    return {256, 210, 2, 4, 2, 0, 128, 8, 16, 192, 2, 16, 208};
  }
  static void dequantize(const std::byte* blocks, size_t count, float* values) {
    for (size_t start = 0; start < count; start += kSuperElements, blocks += 210) {
      const float scale = read_half(blocks + 208);
      for (size_t index = 0; index < kSuperElements; ++index) {
        const size_t half = index / 128;
        const size_t within = index % 128;
        const int both = std::to_integer<int>(blocks[half * 64 + within % 64]);
        const int low = within < 64 ? both & 0x0f : both >> 4;
        const int pairs = std::to_integer<int>(blocks[128 + half * 32 + within % 32]);
        const int quant = low | ((pairs >> (within / 32 * 2)) & 3) << 4;
        const auto group_scale = static_cast<int8_t>(blocks[192 + index / 16]);
        values[start + index] =
            scale * static_cast<float>(group_scale) * static_cast<float>(quant - 32);
      }
    }
  }
  static constexpr FormatTraits kTraits = {
      Format::kQ6_K, "Q6_K", 14, 256, 210, dequantize, {256, 210, kParts, nullptr, dequantize}};
};

}  // namespace lockstep
