// The product of generated tokens on a GPU, its threads played by the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/kernels/gpu_product.h"
#include "tests/engine/kernels/cuda/gpu_code.h"
#include "tests/engine/kernels/random_weights.h"
// Kernels come after what they are written in.
#include "engine/kernels/cuda/product.inl.h"

namespace lockstep {
namespace {

constexpr size_t kSeed = 40;

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
  // What the row would be with all quants zero: the minimums.
  std::vector<float> minimums(size_t index) const {
    const Format format = matrix_.format;
    std::vector<float> values(matrix_.columns);
    if (!has_minimums(format)) return values;
    const size_t bytes = row_bytes(format, matrix_.columns);
    std::vector<std::byte> zeroed(file_.begin() + static_cast<ptrdiff_t>(index * bytes),
                                  file_.begin() + static_cast<ptrdiff_t>((index + 1) * bytes));
    const size_t kept = traits(format).block_elements == 32 ? 4 : 16;
    for (size_t byte = 0; byte < bytes; ++byte) {
      if (byte % traits(format).block_bytes >= kept) zeroed[byte] = std::byte{0};
    }
    traits(format).dequantize(zeroed.data(), matrix_.columns, values.data());
    return values;
  }

 private:
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
        values_(random_values(tokens * columns, random)) {
    std::memset(bytes_.data(), 0xFF, tokens * stride_);
    for (size_t token = 0; token < tokens; ++token) {
      for (size_t column = 0; column < (columns + 31) / 32 * 32; ++column) {
        std::byte* at = bytes_.data() + token * stride_ + column * (floats_ ? 4 : 2);
        if (column >= columns) {
          if (!floats_) std::memset(at, 0, 2);
          continue;
        }
        float& value = values_[token * columns + column];
        const uint16_t bits = to_bf16(value);
        if (!floats_) value = from_bf16(bits);
        floats_ ? std::memcpy(at, &value, 4) : std::memcpy(at, &bits, 2);
      }
    }
  }

  const std::byte* row(size_t token) const { return bytes_.data() + token * stride_; }
  size_t stride_bytes() const { return stride_; }
  float at(size_t token, size_t column) const { return values_[token * columns_ + column]; }

 private:
  bool floats_;
  size_t columns_;
  size_t stride_;
  AlignedBuffer bytes_;
  std::vector<float> values_;
};

// One part's product of tokens [first, first + count), nothing after it: [token][row].
std::vector<float> multiply_all(const GpuMatrix& matrix, const Inputs& inputs, size_t first,
                                uint32_t count, size_t limit) {
  std::vector<float> output(limit * matrix.rows, -7.0F);
  GpuProduct product;
  product.input = inputs.row(first);
  product.input_stride_bytes = inputs.stride_bytes();
  product.token_count = &count;
  product.token_limit = limit;
  product.part_count = 1;
  product.parts[0].matrix = matrix;
  product.parts[0].output = output.data();
  product.parts[0].output_stride = matrix.rows;
  gpu_product(nullptr, product);
  for (size_t at = count * matrix.rows; at < output.size(); ++at) EXPECT_EQ(output[at], -7.0F);
  output.resize(count * matrix.rows);
  return output;
}

class GpuProductOf : public testing::TestWithParam<Format> {
 protected:
  Format format() const { return GetParam(); }
  // More units than warps, unevenly, and stages that are used again; an odd end.
  size_t columns() const {
    if (traits(format()).block_elements == 256) return 256 * 9;
    return traits(format()).block_elements == 32 ? 64 * 73 + 32 : 64 * 25 + 17;
  }
};

// With u = 2^-24, a term that goes through n roundings is off by at most n u / (1 - n u) of its
// magnitude. On the host a tile product rounds once. A term goes through: within its 32 columns 2
// tile products (F16: 4; F32: 64 fma of its unit), then one fma (with a minimum two) per scale, or
// nothing, and so on through all of the warp's later units; 8 additions of warps' sums; its scale
// and its reference weight are rounded up to 4 times. All of it is at most as many as there are
// tile products (fma) and scales of a warp's columns, and 12. The magnitude is |quant * scale * x|
// + |minimum * x|, at most (|w| + 2 |minimum|) |x|.
TEST_P(GpuProductOf, is_within_the_rounding_of_its_terms_of_float64) {
  RandomEngine random(kSeed);
  constexpr size_t kRows = 50;
  constexpr size_t kTokens = 11;
  const Weights weights(format(), kRows, columns(), random);
  const Inputs inputs(format(), kTokens, columns(), random);
  const std::vector<float> output = multiply_all(weights.matrix(), inputs, 0, kTokens, kTokens);
  const GpuLayout layout = gpu_layout(format());
  const size_t units = (columns() + layout.unit_columns() - 1) / layout.unit_columns();
  const size_t warp_columns = (units + 7) / 8 * layout.unit_columns();
  const size_t roundings = 12 + (format() == Format::kF32 ? warp_columns : warp_columns / 16 * 2);
  const double unit = static_cast<double>(roundings) * std::ldexp(1.0, -24);
  const double relative = unit / (1 - unit);
  for (size_t row = 0; row < kRows; ++row) {
    const std::vector<float> w = weights.row(row);
    const std::vector<float> minimums = weights.minimums(row);
    for (size_t token = 0; token < kTokens; ++token) {
      double sum = 0;
      double magnitude = 0;
      for (size_t k = 0; k < columns(); ++k) {
        const auto x = static_cast<double>(inputs.at(token, k));
        sum += static_cast<double>(w[k]) * x;
        magnitude += static_cast<double>(std::abs(w[k]) + 2 * std::abs(minimums[k])) * std::abs(x);
      }
      ASSERT_NEAR(static_cast<double>(output[token * kRows + row]), sum,
                  relative * magnitude + 1e-30)
          << "seed " << kSeed << ", row " << row << ", token " << token;
    }
  }
}

TEST_P(GpuProductOf, gives_a_token_the_same_bits_alone_and_among_others) {
  RandomEngine random(kSeed + 1);
  constexpr size_t kRows = 33;
  const size_t few = std::min<size_t>(columns(), 64 * 9 + 32);
  const size_t block = traits(format()).block_elements;
  const size_t width = block == 256 ? 256 : few / 32 * 32;
  const Weights weights(format(), kRows, width, random);
  const Inputs inputs(format(), kGpuProductTokens, width, random);
  const std::vector<float> all =
      multiply_all(weights.matrix(), inputs, 0, kGpuProductTokens, kGpuProductTokens);
  struct Case {
    size_t first;
    uint32_t count;
    size_t limit;
  };
  for (const Case& some : {Case{0, 1, 1}, Case{63, 1, 1}, Case{29, 1, 16}, Case{5, 9, 16},
                           Case{17, 31, 32}, Case{3, 33, 64}, Case{40, 0, 8}}) {
    const std::vector<float> output =
        multiply_all(weights.matrix(), inputs, some.first, some.count, some.limit);
    ASSERT_TRUE(std::equal(output.begin(), output.end(),
                           all.begin() + static_cast<ptrdiff_t>(some.first * kRows)))
        << "seed " << kSeed + 1 << ", " << some.count << " tokens from " << some.first << " on";
  }
}

std::vector<Format> formats() {
  std::vector<Format> formats;
  for (const FormatTraits& row : all_formats()) formats.push_back(row.format);
  return formats;
}

std::string case_name(const testing::TestParamInfo<Format>& info) {
  return std::string(traits(info.param).name);
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuProductOf, testing::ValuesIn(formats()), case_name);

}  // namespace
}  // namespace lockstep
