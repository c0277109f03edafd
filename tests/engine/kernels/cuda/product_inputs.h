// Weights and activations for tests of products on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "engine/kernels/gpu_product.h"
#include "engine/kernels/gpu_tile.h"
#include "tests/engine/kernels/random_weights.h"

namespace lockstep {

// Weights in both ways: as the file's values, and as the kernel reads them.
class Weights {
 public:
  Weights(Format format, size_t rows, size_t columns, RandomEngine& random)
      : file_(random_rows(format, rows, columns, random)),
        planes_(gpu_matrix_bytes(format, rows, columns) + 256),
        matrix_{format, rows, columns, nullptr} {
    const auto address = reinterpret_cast<uintptr_t>(planes_.data());
    std::byte* planes = planes_.data() + (256 - address % 256) % 256;
    pack_gpu_rows(
        {format, rows, columns, file_.data(), row_bytes(format, columns), 0, rows, planes});
    matrix_.planes = planes;
  }

  const GpuMatrix& matrix() const { return matrix_; }
  std::vector<float> row(size_t index) const {
    std::vector<float> values(matrix_.columns);
    traits(matrix_.format)
        .dequantize(file_.data() + index * row_bytes(matrix_.format, matrix_.columns),
                    matrix_.columns, values.data());
    return values;
  }
  // The row as it would be with all quants 0, or 1; of formats whose quants have 2 or 4 bits and
  // more in another place. With minimums it is these.
  std::vector<float> row_of_zeros(size_t index) const { return row_of_quants(index, 0); }
  std::vector<float> row_of_ones(size_t index) const { return row_of_quants(index, 1); }

 private:
  std::vector<float> row_of_quants(size_t index, unsigned quant) const {
    const Format format = matrix_.format;
    std::vector<float> values(matrix_.columns);
    const GpuLayout layout = gpu_layout(format);
    if (layout.quant_bits > 4 || has_table(format)) return values;
    const unsigned all = layout.quant_bits == 4 ? 0x11U : 0x55U;
    const size_t bytes = row_bytes(format, matrix_.columns);
    std::vector<std::byte> row(file_.begin() + static_cast<ptrdiff_t>(index * bytes),
                               file_.begin() + static_cast<ptrdiff_t>((index + 1) * bytes));
    for (size_t byte = 0; byte < bytes; ++byte) {
      const size_t place = byte % layout.block_bytes;  // wraps where the part begins behind it
      if (place - layout.quants_begin < layout.block_elements / 8 * layout.quant_bits) {
        row[byte] = static_cast<std::byte>(quant * all);
      } else if (place - layout.high_begin < layout.block_elements / 8 * layout.high_bits) {
        row[byte] = std::byte{0};
      }
    }
    traits(format).dequantize(row.data(), matrix_.columns, values.data());
    return values;
  }

  std::vector<std::byte> file_;
  AlignedBuffer planes_;
  GpuMatrix matrix_;
};

// Rows of activations as a product of such weights reads them, and their exact values. What lies
// beyond the zeros after a row is no number.
class Inputs {
 public:
  Inputs(Format format, size_t tokens, size_t columns, RandomEngine& random)
      : floats_(format == Format::kF32),
        columns_(columns),
        stride_(((columns + 31) / 32 * 32 * 4 + 79) / 16 * 16),
        bytes_(tokens * stride_),
        values_(random_values(tokens * columns, random)),
        token_count_(std::make_unique<uint32_t>(static_cast<uint32_t>(tokens))) {
    std::memset(bytes_.data(), 0xFF, tokens * stride_);
    for (size_t token = 0; token < tokens; ++token) {
      for (size_t column = 0; column < (columns + 31) / 32 * 32; ++column) {
        std::byte* at = bytes_.data() + token * stride_ + column * (floats_ ? 4 : 2);
        if (column >= columns) {
          if (!floats_) std::memset(at, 0, 2);
          continue;
        }
        float& value = values_[token * columns + column];
        const uint16_t bits = float_to_bf16(value);
        if (!floats_) value = bf16_to_float(bits);
        floats_ ? std::memcpy(at, &value, 4) : std::memcpy(at, &bits, 2);
      }
    }
  }

  const std::byte* row(size_t token) const { return bytes_.data() + token * stride_; }
  size_t stride_bytes() const { return stride_; }
  float at(size_t token, size_t column) const { return values_[token * columns_ + column]; }
  // The count by which kernels see that all tokens are there: like all that they read, not on the
  // stack, which a real GPU does not reach.
  const uint32_t* token_count() const { return token_count_.get(); }

 private:
  bool floats_;
  size_t columns_;
  size_t stride_;
  AlignedBuffer bytes_;
  std::vector<float> values_;
  std::unique_ptr<uint32_t> token_count_;
};

// One part's product of tokens [first, first + count), nothing after it: [token][row]. `split`:
// with space for partial sums, by which products of few rows are split.
inline std::vector<float> multiply_all(const GpuMatrix& matrix, const Inputs& inputs, size_t first,
                                       uint32_t count, size_t limit, bool split = false) {
  std::vector<float> output(limit * matrix.rows, -7.0F);
  std::vector<float> partials(split ? 8 * (limit + 64) * (matrix.rows + 32) : 0);
  const auto token_count = std::make_unique<uint32_t>(count);
  GpuProduct product;
  product.input = inputs.row(first);
  product.input_stride_bytes = inputs.stride_bytes();
  product.token_count = token_count.get();
  product.token_limit = limit;
  product.part_count = 1;
  product.parts[0].matrix = matrix;
  product.parts[0].output = output.data();
  product.parts[0].output_stride = matrix.rows;
  product.partials = split ? partials.data() : nullptr;
  product.partial_floats = partials.size();
  gpu_product(nullptr, product);
  for (size_t at = count * matrix.rows; at < output.size(); ++at) EXPECT_EQ(output[at], -7.0F);
  output.resize(count * matrix.rows);
  return output;
}

}  // namespace lockstep
