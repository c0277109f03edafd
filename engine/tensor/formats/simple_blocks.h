// Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: blocks of 32 elements with a half scale, and a half minimum or an
// offset. Memory holds them as files do.
#pragma once

#include "engine/tensor/formats/block_bytes.h"

namespace lockstep {

// A scale, 32 signed bytes.
struct Q8_0 {
  static constexpr BlockPart kParts[] = {{2, 34, BlockUnit::kFourBytes},
                                         {0, 2, BlockUnit::kTwoBytes}};
  static constexpr GpuLayout gpu_layout() { return {32, 34, 2, 8, 0, 2, 0, 8, 2, 0, 0, 32}; }
  static void dequantize(const std::byte* blocks, size_t count, float* values) {
    for (size_t start = 0; start < count; start += kSimpleElements, blocks += 34) {
      const float scale = read_half(blocks);
      for (size_t index = 0; index < kSimpleElements; ++index) {
        const auto quant = static_cast<int8_t>(blocks[2 + index]);
        values[start + index] = scale * static_cast<float>(quant);
      }
    }
  }
  static constexpr FormatTraits kTraits = {
      Format::kQ8_0, "Q8_0", 8, 32, 34, dequantize, {32, 34, kParts, nullptr, dequantize}};
};

// A scale, 32 nibbles with an offset of 8.
struct Q4_0 {
  static constexpr BlockPart kParts[] = {{2, 18, BlockUnit::kFourBytes},
                                         {0, 2, BlockUnit::kTwoBytes}};
  static constexpr GpuLayout gpu_layout() { return {32, 18, 2, 4, 0, 2, 0, 8, 2, 0, 0, 32}; }
  static void dequantize(const std::byte* blocks, size_t count, float* values) {
    for (size_t start = 0; start < count; start += kSimpleElements, blocks += 18) {
      const float scale = read_half(blocks);
      for (size_t index = 0; index < kSimpleElements; ++index) {
        values[start + index] = scale * static_cast<float>(nibble(blocks + 2, index) - 8);
      }
    }
  }
  static constexpr FormatTraits kTraits = {
      Format::kQ4_0, "Q4_0", 2, 32, 18, dequantize, {32, 18, kParts, nullptr, dequantize}};
};

// A scale, a minimum, 32 nibbles.
struct Q4_1 {
  static constexpr BlockPart kParts[] = {{4, 20, BlockUnit::kFourBytes},
                                         {0, 4, BlockUnit::kTwoBytes}};
  static constexpr GpuLayout gpu_layout() { return {32, 20, 2, 4, 0, 4, 0, 16, 4, 0, 0, 32}; }
  static void dequantize(const std::byte* blocks, size_t count, float* values) {
    for (size_t start = 0; start < count; start += kSimpleElements, blocks += 20) {
      const float scale = read_half(blocks);
      const float minimum = read_half(blocks + 2);
      for (size_t index = 0; index < kSimpleElements; ++index) {
        values[start + index] = scale * static_cast<float>(nibble(blocks + 4, index)) + minimum;
      }
    }
  }
  static constexpr FormatTraits kTraits = {
      Format::kQ4_1, "Q4_1", 3, 32, 20, dequantize, {32, 20, kParts, nullptr, dequantize}};
};

// A scale, the fifth bits of 32 elements, their nibbles; offset 16.
struct Q5_0 {
  static constexpr BlockPart kParts[] = {
      {6, 22, BlockUnit::kFourBytes}, {2, 6, BlockUnit::kBitPlane}, {0, 2, BlockUnit::kTwoBytes}};
  static constexpr GpuLayout gpu_layout() { return {32, 22, 2, 4, 1, 6, 2, 8, 2, 0, 0, 32}; }
  static void dequantize(const std::byte* blocks, size_t count, float* values) {
    for (size_t start = 0; start < count; start += kSimpleElements, blocks += 22) {
      const float scale = read_half(blocks);
      const uint32_t high = read_u32(blocks + 2);
      for (size_t index = 0; index < kSimpleElements; ++index) {
        const int quant = nibble(blocks + 6, index) | fifth_bit(high, index);
        values[start + index] = scale * static_cast<float>(quant - 16);
      }
    }
  }
  static constexpr FormatTraits kTraits = {
      Format::kQ5_0, "Q5_0", 6, 32, 22, dequantize, {32, 22, kParts, nullptr, dequantize}};
};

// A scale, a minimum, the fifth bits of 32 elements, their nibbles.
struct Q5_1 {
  static constexpr BlockPart kParts[] = {
      {8, 24, BlockUnit::kFourBytes}, {4, 8, BlockUnit::kBitPlane}, {0, 4, BlockUnit::kTwoBytes}};
  static constexpr GpuLayout gpu_layout() { return {32, 24, 2, 4, 1, 8, 4, 16, 4, 0, 0, 32}; }
  static void dequantize(const std::byte* blocks, size_t count, float* values) {
    for (size_t start = 0; start < count; start += kSimpleElements, blocks += 24) {
      const float scale = read_half(blocks);
      const float minimum = read_half(blocks + 2);
      const uint32_t high = read_u32(blocks + 4);
      for (size_t index = 0; index < kSimpleElements; ++index) {
        const int quant = nibble(blocks + 8, index) | fifth_bit(high, index);
        values[start + index] = scale * static_cast<float>(quant) + minimum;
      }
    }
  }
  static constexpr FormatTraits kTraits = {
      Format::kQ5_1, "Q5_1", 7, 32, 24, dequantize, {32, 24, kParts, nullptr, dequantize}};
};

}  // namespace lockstep
