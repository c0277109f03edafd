// The formats in which numbers of a model are stored, as GGUF defines them: blocks of a fixed
// number of elements and bytes. A format is a struct in formats/ and a row of the list in
// formats.h; all else follows from it.
// Source of the layouts: the GGUF specification and ggml's block definitions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "engine/tensor/block_part.h"

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
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIq4Nl,
  kIq4Xs,
  kMxfp4,
  kNvfp4,
  kIq3S,
  kIq3Xxs,
  kIq2S,
  kIq2Xs,
  kIq2Xxs,
  kIq1S,
  kIq1M,
  kTq1_0,
  kTq2_0,
};
inline constexpr size_t kFormatCount = 26;

struct FormatTraits {
  Format format;
  std::string_view name;    // as GGUF tools print it: "Q4_0"
  uint32_t ggml_type;       // the number a GGUF file holds
  uint32_t block_elements;  // elements in one block; a row is a whole number of blocks
  uint32_t block_bytes;
  // Writes count elements (a multiple of block_elements) as float; the exact values of the format.
  // `blocks` needs no alignment. Each value is computed in the order of single-precision operations
  // that the format's definition gives, without fused operations, so that the bits are those of any
  // exact reader.
  void (*dequantize)(const std::byte* blocks, size_t count, float* values);
  PackedBlock packed;

  // Whether blocks have scales; F32, F16 and BF16 are numbers by themselves.
  constexpr bool is_quantized() const { return block_elements > 1; }
};

const FormatTraits& traits(Format format);
std::span<const FormatTraits> all_formats();
std::optional<Format> format_of_ggml_type(uint32_t ggml_type);
std::optional<Format> format_of_name(std::string_view name);

// Bytes of a row of `columns` elements, in the file and in memory; columns is a multiple of the
// format's block_elements.
size_t row_bytes(Format format, size_t columns);
size_t packed_row_bytes(Format format, size_t columns);

// IEEE half and bfloat16 to and from float; to narrower rounds to nearest even, NaN stays NaN.
float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);

}  // namespace lockstep
