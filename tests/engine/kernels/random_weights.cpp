#include "tests/engine/kernels/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/tensor/formats/coded.h"

namespace lockstep {

namespace {

void store_bits(std::byte* p, uint16_t bits) {
  std::memcpy(p, &bits, sizeof bits);
}

// The offsets at which a format's block holds its halves (scales, minimums), in bytes.
std::vector<size_t> half_offsets(Format format) {
  switch (format) {
    case Format::kQ2_K:
      return {80, 82};
    case Format::kQ3_K:
      return {108};
    case Format::kQ4_1:
    case Format::kQ5_1:
    case Format::kQ4_K:
    case Format::kQ5_K:
      return {0, 2};
    case Format::kQ6_K:
      return {208};
    case Format::kTq1_0:
      return {52};
    case Format::kTq2_0:
      return {64};
    default:
      return {0};
  }
}

// The byte of MXFP4 whose power of two is nearest above `value`, a normal number's.
std::byte exponent_of(float value) {
  int exponent = 0;
  if (std::isfinite(value) && value != 0) std::frexp(value, &exponent);
  return static_cast<std::byte>(std::clamp(exponent + 128, 2, 254));
}

// The byte of NVFP4 that is least far below `value`.
std::byte tiny_float_of(float value) {
  uint8_t bits = 0;
  while (bits < 126 && tiny_float_scale(static_cast<uint8_t>(bits + 1)) <= std::abs(value)) ++bits;
  return static_cast<std::byte>(bits);
}

// Sets a block's scales and minimums; `value` gives each.
template <typename Value>
void set_scales(Format format, std::byte* block, Value value) {
  if (format == Format::kF32 || format == Format::kBf16) return;
  if (format == Format::kMxfp4) {
    block[0] = exponent_of(value());
  } else if (format == Format::kNvfp4) {
    for (size_t group = 0; group < 4; ++group) block[group] = tiny_float_of(value());
  } else if (format == Format::kIq1M) {
    const unsigned half = float_to_half(value());
    for (size_t word = 0; word < 4; ++word) {
      std::byte& upper = block[48 + 2 * word + 1];
      upper = (upper & std::byte{15}) | static_cast<std::byte>((half >> (4 * word) & 15U) << 4U);
    }
  } else {
    for (const size_t offset : half_offsets(format)) {
      store_bits(block + offset, float_to_half(value()));
    }
  }
}

}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes) : storage_(bytes + 63) {
  const auto address = reinterpret_cast<uintptr_t>(storage_.data());
  offset_ = (64 - address % 64) % 64;
}

std::vector<std::byte> random_rows(Format format, size_t rows, size_t columns,
                                   RandomEngine& random) {
  std::vector<std::byte> bytes(rows * row_bytes(format, columns));
  std::normal_distribution<float> normal(0.0F, 0.02F);
  const size_t block_bytes = traits(format).block_bytes;
  for (size_t block = 0; block < bytes.size(); block += block_bytes) {
    std::byte* p = bytes.data() + block;
    if (format == Format::kF32) {
      const float value = normal(random);
      std::memcpy(p, &value, sizeof value);
      continue;
    }
    if (format == Format::kBf16) {
      store_bits(p, float_to_bf16(normal(random)));
      continue;
    }
    for (size_t i = 0; i < block_bytes; ++i) p[i] = static_cast<std::byte>(random());
    const bool zero_scale = random() % 16 == 0;
    set_scales(format, p, [&] { return zero_scale ? 0.0F : normal(random); });
  }
  return bytes;
}

void set_halves(Format format, float value, std::span<std::byte> rows) {
  set_halves(
      format, [value] { return value; }, rows);
}

void set_halves(Format format, const std::function<float()>& value, std::span<std::byte> rows) {
  for (size_t block = 0; block < rows.size(); block += traits(format).block_bytes) {
    set_scales(format, rows.data() + block, value);
  }
}

RandomMatrix::RandomMatrix(Format format, size_t rows, size_t columns, RandomEngine& random)
    : RandomMatrix(format, rows, columns, random_rows(format, rows, columns, random)) {}

RandomMatrix::RandomMatrix(Format format, size_t rows, size_t columns,
                           std::vector<std::byte> file_rows)
    : file_rows_(std::move(file_rows)),
      panels_((rows + kPanelRows - 1) / kPanelRows * panel_bytes(format, columns)),
      packed_{.format = format, .rows = rows, .columns = columns, .panels = panels_.data()} {
  for (size_t row = 0; row < rows; row += kPanelRows) {
    const size_t left = rows - row;
    pack_panel(format, columns, file_rows_.data() + row * row_bytes(format, columns),
               left < kPanelRows ? left : kPanelRows,
               panels_.data() + row / kPanelRows * panel_bytes(format, columns));
  }
}

std::vector<std::byte> RandomMatrix::file_row(size_t row) const {
  const size_t bytes = row_bytes(packed_.format, packed_.columns);
  const std::byte* begin = file_rows_.data() + row * bytes;
  return {begin, begin + bytes};
}

std::vector<float> RandomMatrix::dequantized(size_t row) const {
  std::vector<float> values(packed_.columns);
  traits(packed_.format).dequantize(file_row(row).data(), packed_.columns, values.data());
  return values;
}

std::vector<float> random_values(size_t count, RandomEngine& random) {
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
    if (random() % 97 == 0) value *= 40.0F;
  }
  return values;
}

Activations::Activations(const KernelTable& table, Format weights, std::span<const float> values,
                         size_t token_count, size_t columns)
    : Activations(table, activation_form(weights), values, token_count, columns) {}

Activations::Activations(const KernelTable& table, ActivationForm form,
                         std::span<const float> values, size_t token_count, size_t columns)
    // An odd number of lines apart, as the daemon has them.
    : stride_bytes_(activation_row_bytes(form, columns) | (form == ActivationForm::kF32 ? 64 : 0)),
      rows_(token_count * stride_bytes_) {
  for (size_t token = 0; token < token_count; ++token) {
    const float* source = values.data() + token * columns;
    std::byte* row = rows_.data() + token * stride_bytes_;
    switch (form) {
      case ActivationForm::kF32:
        std::memcpy(row, source, columns * sizeof(float));
        break;
      case ActivationForm::kQ8:
        table.quantize(source, columns, 0, columns, row);
        break;
      case ActivationForm::kBf16:
      case ActivationForm::kBf16Dots:
        table.to_bf16(source, columns, row);
        break;
    }
  }
}

}  // namespace lockstep
