#include "engine/base/check.h"
#include "engine/tensor/format.h"
#include "engine/tensor/formats.h"

namespace lockstep {
namespace {

constexpr auto kFormats = each_format<FormatTraits>([]<typename F>() { return F::kTraits; });

constexpr bool are_in_order() {
  for (size_t index = 0; index < kFormatCount; ++index) {
    if (static_cast<size_t>(kFormats[index].format) != index) return false;
  }
  return true;
}
static_assert(are_in_order(), "the list of formats is in the order of Format");

size_t blocks_of_row(const FormatTraits& format, size_t columns) {
  CHECK(columns % format.block_elements == 0, "a row of {} elements in blocks of {}", columns,
        format.block_elements);
  return columns / format.block_elements;
}

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
  return blocks_of_row(traits(format), columns) * traits(format).block_bytes;
}

size_t packed_row_bytes(Format format, size_t columns) {
  const FormatTraits& row = traits(format);
  const size_t packed_blocks = row.block_elements / row.packed.elements;
  return blocks_of_row(row, columns) * packed_blocks * row.packed.bytes;
}

}  // namespace lockstep
