// The formats in which numbers of a model are stored, as GGUF defines them: blocks of a fixed
// number of elements and bytes. One row of the table in format.cpp per format.
// Source of the layouts: the GGUF specification and ggml's block definitions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lockstep {

enum class Format : uint8_t {
  kF32,
  kF16,
  kBf16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};
inline constexpr size_t kFormatCount = 11;

struct FormatTraits {
  Format format;
  std::string_view name;    // as GGUF tools print it: "Q4_0"
  uint32_t ggml_type;       // the number a GGUF file holds
  uint32_t block_elements;  // elements in one block; a row is a whole number of blocks
  uint32_t block_bytes;
  // Writes count elements (a multiple of block_elements) as float; the exact values of the format.
  void (*dequantize)(const std::byte* blocks, size_t count, float* values);
};

const FormatTraits& traits(Format format);
std::span<const FormatTraits> all_formats();
std::optional<Format> format_of_ggml_type(uint32_t ggml_type);
std::optional<Format> format_of_name(std::string_view name);

// Bytes of a row of `columns` elements; columns is a multiple of the format's block_elements.
size_t row_bytes(Format format, size_t columns);

// IEEE half and bfloat16 to and from float; to narrower rounds to nearest even, NaN stays NaN.
float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);

}  // namespace lockstep
