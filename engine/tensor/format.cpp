#include "engine/tensor/format.h"

#include <array>

#include "engine/base/check.h"
#include "engine/tensor/dequantize.h"

namespace lockstep {
namespace {

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
