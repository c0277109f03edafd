// F32, F16, BF16: numbers by themselves.
#pragma once

#include <cstring>

#include "engine/tensor/formats/block_bytes.h"

namespace lockstep {

struct F32 {
  static constexpr BlockPart kParts[] = {{0, 4, BlockUnit::kFourBytes}};
  static constexpr GpuLayout gpu_layout() { return {1, 4, 1, 32, 0, 0, 0, 0, 0, 0, 0, 32}; }
  static void dequantize(const std::byte* blocks, size_t count, float* values) {
    if (count != 0) std::memcpy(values, blocks, count * sizeof(float));
  }
  static constexpr FormatTraits kTraits = {
      Format::kF32, "F32", 0, 1, 4, dequantize, {1, 4, kParts, nullptr, dequantize}};
};

struct F16 {
  static constexpr BlockPart kParts[] = {{0, 2, BlockUnit::kTwoBytes}};
  static constexpr GpuLayout gpu_layout() { return {1, 2, 1, 16, 0, 0, 0, 0, 0, 0, 0, 32}; }
  static void dequantize(const std::byte* blocks, size_t count, float* values) {
    for (size_t index = 0; index < count; ++index) values[index] = read_half(blocks + index * 2);
  }
  static constexpr FormatTraits kTraits = {
      Format::kF16, "F16", 1, 1, 2, dequantize, {1, 2, kParts, nullptr, dequantize}};
};

struct Bf16 {
  static constexpr BlockPart kParts[] = {{0, 2, BlockUnit::kTwoBytes}};
  static constexpr GpuLayout gpu_layout() { return {1, 2, 1, 16, 0, 0, 0, 0, 0, 0, 0, 32}; }
  static void dequantize(const std::byte* blocks, size_t count, float* values) {
    for (size_t index = 0; index < count; ++index) {
      values[index] = bf16_to_float(read_u16(blocks + index * 2));
    }
  }
  static constexpr FormatTraits kTraits = {
      Format::kBf16, "BF16", 30, 1, 2, dequantize, {1, 2, kParts, nullptr, dequantize}};
};

}  // namespace lockstep
