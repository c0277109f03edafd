#include "engine/tensor/format.h"

#include <array>
#include <cstring>

#include "engine/base/check.h"

namespace lockstep {
namespace {

constexpr size_t kBlock = 32;        // elements of a simple block
constexpr size_t kSuperBlock = 256;  // elements of a K block

uint16_t read_u16(const std::byte* bytes) {
  uint16_t value = 0;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

uint32_t read_u32(const std::byte* bytes) {
  uint32_t value = 0;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

float read_half(const std::byte* bytes) {
  return half_to_float(read_u16(bytes));
}

// Byte i holds element i in its low nibble and element i + 16 in its high one.
int nibble(const std::byte* nibbles, size_t element) {
  const int both = std::to_integer<int>(nibbles[element % 16]);
  return element < 16 ? both & 0x0f : both >> 4;
}

int fifth_bit(uint32_t bits, size_t element) {
  return static_cast<int>((bits >> element) & 1u) << 4;
}

// The eight scales and minima of a K block, six bits each, in 12 bytes.
struct Scales {
  std::array<float, 8> scale;
  std::array<float, 8> minimum;
};

Scales unpack_scales(const std::byte* block) {
  const float scale = read_half(block);
  const float minimum = read_half(block + 2);
  const auto at = [block](size_t index) { return std::to_integer<int>(block[4 + index]); };
  Scales result{};
  for (size_t index = 0; index < 4; ++index) {
    result.scale[index] = scale * static_cast<float>(at(index) & 0x3f);
    result.minimum[index] = minimum * static_cast<float>(at(index + 4) & 0x3f);
    const int low = at(index + 8);
    const int scale_high = (at(index) >> 2) & 0x30;
    const int minimum_high = (at(index + 4) >> 2) & 0x30;
    result.scale[index + 4] = scale * static_cast<float>((low & 0x0f) | scale_high);
    result.minimum[index + 4] = minimum * static_cast<float>((low >> 4) | minimum_high);
  }
  return result;
}

// From stored blocks to float, one function per format. `count` is a multiple of the format's
// block_elements; `blocks` needs no alignment. Each value is computed in the order of
// single-precision operations that the format's definition gives, without fused operations, so that
// the bits are those of any exact reader.

void dequantize_f32(const std::byte* blocks, size_t count, float* values) {
  if (count != 0) std::memcpy(values, blocks, count * sizeof(float));
}

void dequantize_f16(const std::byte* blocks, size_t count, float* values) {
  for (size_t index = 0; index < count; ++index) values[index] = read_half(blocks + index * 2);
}

void dequantize_bf16(const std::byte* blocks, size_t count, float* values) {
  for (size_t index = 0; index < count; ++index) {
    values[index] = bf16_to_float(read_u16(blocks + index * 2));
  }
}

// A half scale, 32 signed bytes.
void dequantize_q8_0(const std::byte* blocks, size_t count, float* values) {
  for (size_t start = 0; start < count; start += kBlock, blocks += 34) {
    const float scale = read_half(blocks);
    for (size_t index = 0; index < kBlock; ++index) {
      const auto quant = static_cast<int8_t>(blocks[2 + index]);
      values[start + index] = scale * static_cast<float>(quant);
    }
  }
}

// A half scale, 32 nibbles with an offset of 8.
void dequantize_q4_0(const std::byte* blocks, size_t count, float* values) {
  for (size_t start = 0; start < count; start += kBlock, blocks += 18) {
    const float scale = read_half(blocks);
    for (size_t index = 0; index < kBlock; ++index) {
      values[start + index] = scale * static_cast<float>(nibble(blocks + 2, index) - 8);
    }
  }
}

// A half scale, a half minimum, 32 nibbles.
void dequantize_q4_1(const std::byte* blocks, size_t count, float* values) {
  for (size_t start = 0; start < count; start += kBlock, blocks += 20) {
    const float scale = read_half(blocks);
    const float minimum = read_half(blocks + 2);
    for (size_t index = 0; index < kBlock; ++index) {
      values[start + index] = scale * static_cast<float>(nibble(blocks + 4, index)) + minimum;
    }
  }
}

// A half scale, the fifth bits of 32 elements, their nibbles; offset 16.
void dequantize_q5_0(const std::byte* blocks, size_t count, float* values) {
  for (size_t start = 0; start < count; start += kBlock, blocks += 22) {
    const float scale = read_half(blocks);
    const uint32_t high = read_u32(blocks + 2);
    for (size_t index = 0; index < kBlock; ++index) {
      const int quant = nibble(blocks + 6, index) | fifth_bit(high, index);
      values[start + index] = scale * static_cast<float>(quant - 16);
    }
  }
}

// A half scale, a half minimum, the fifth bits of 32 elements, their nibbles.
void dequantize_q5_1(const std::byte* blocks, size_t count, float* values) {
  for (size_t start = 0; start < count; start += kBlock, blocks += 24) {
    const float scale = read_half(blocks);
    const float minimum = read_half(blocks + 2);
    const uint32_t high = read_u32(blocks + 4);
    for (size_t index = 0; index < kBlock; ++index) {
      const int quant = nibble(blocks + 8, index) | fifth_bit(high, index);
      values[start + index] = scale * static_cast<float>(quant) + minimum;
    }
  }
}

// Two halves (scale, minimum), 12 bytes of eight scales and minima, then nibbles: of each 64
// elements, byte i of 32 holds element i low and element i + 32 high.
void dequantize_q4_k(const std::byte* blocks, size_t count, float* values) {
  for (size_t start = 0; start < count; start += kSuperBlock, blocks += 144) {
    const Scales scales = unpack_scales(blocks);
    const std::byte* nibbles = blocks + 16;
    for (size_t index = 0; index < kSuperBlock; ++index) {
      const size_t group = index / 32;
      const int both = std::to_integer<int>(nibbles[group / 2 * 32 + index % 32]);
      const int quant = group % 2 == 0 ? both & 0x0f : both >> 4;
      values[start + index] =
          scales.scale[group] * static_cast<float>(quant) - scales.minimum[group];
    }
  }
}

// As Q4_K, with the fifth bits before the nibbles: bit g of byte i is that of element i of the
// g-th 32.
void dequantize_q5_k(const std::byte* blocks, size_t count, float* values) {
  for (size_t start = 0; start < count; start += kSuperBlock, blocks += 176) {
    const Scales scales = unpack_scales(blocks);
    const std::byte* high = blocks + 16;
    const std::byte* nibbles = blocks + 48;
    for (size_t index = 0; index < kSuperBlock; ++index) {
      const size_t group = index / 32;
      const int both = std::to_integer<int>(nibbles[group / 2 * 32 + index % 32]);
      const int low = group % 2 == 0 ? both & 0x0f : both >> 4;
      const int quant = low | fifth_bit(std::to_integer<uint32_t>(high[index % 32]), group);
      values[start + index] =
          scales.scale[group] * static_cast<float>(quant) - scales.minimum[group];
    }
  }
}

// Low nibbles, high bit pairs, 16 signed scales, a half scale; offset 32. Of each 128 elements, 64
// bytes hold elements i low and i + 64 high, and 32 bytes the pairs of elements i, i + 32, ...
void dequantize_q6_k(const std::byte* blocks, size_t count, float* values) {
  for (size_t start = 0; start < count; start += kSuperBlock, blocks += 210) {
    const float scale = read_half(blocks + 208);
    for (size_t index = 0; index < kSuperBlock; ++index) {
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

// In the order of Format. The columns are those of FormatTraits.
constexpr std::array<FormatTraits, kFormatCount> kFormats = {{
    {Format::kF32, "F32", 0, 1, 4, dequantize_f32},
    {Format::kF16, "F16", 1, 1, 2, dequantize_f16},
    {Format::kBf16, "BF16", 30, 1, 2, dequantize_bf16},
    {Format::kQ8_0, "Q8_0", 8, 32, 34, dequantize_q8_0},
    {Format::kQ4_0, "Q4_0", 2, 32, 18, dequantize_q4_0},
    {Format::kQ4_1, "Q4_1", 3, 32, 20, dequantize_q4_1},
    {Format::kQ5_0, "Q5_0", 6, 32, 22, dequantize_q5_0},
    {Format::kQ5_1, "Q5_1", 7, 32, 24, dequantize_q5_1},
    {Format::kQ4_K, "Q4_K", 12, 256, 144, dequantize_q4_k},
    {Format::kQ5_K, "Q5_K", 13, 256, 176, dequantize_q5_k},
    {Format::kQ6_K, "Q6_K", 14, 256, 210, dequantize_q6_k},
}};

}  // namespace

const FormatTraits& traits(Format format) {
  const auto index = static_cast<size_t>(format);
  CHECK(index < kFormats.size(), "format {}", index);
  return kFormats[index];
}

std::span<const FormatTraits> all_formats() {
  return kFormats;
}

std::optional<Format> format_of_ggml_type(uint32_t ggml_type) {
  for (const FormatTraits& row : kFormats) {
    if (row.ggml_type == ggml_type) return row.format;
  }
  return std::nullopt;
}

std::optional<Format> format_of_name(std::string_view name) {
  for (const FormatTraits& row : kFormats) {
    if (row.name == name) return row.format;
  }
  return std::nullopt;
}

size_t row_bytes(Format format, size_t columns) {
  const FormatTraits& row = traits(format);
  CHECK(columns % row.block_elements == 0, "a row of {} elements in blocks of {}", columns,
        row.block_elements);
  return columns / row.block_elements * row.block_bytes;
}

}  // namespace lockstep
