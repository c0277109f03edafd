// The product of generated tokens on a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/kernels/gpu_product.h"
#include "tests/engine/kernels/cuda/format_cases.h"
#include "tests/engine/kernels/cuda/kernel_rounding.h"
#include "tests/engine/kernels/cuda/product_inputs.h"
#include "tests/engine/kernels/random_weights.h"

namespace lockstep {
namespace {

constexpr size_t kSeed = 40;

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
// magnitude; a tile product counts as tile_product_roundings(). A term goes through
//   quantized  the 2 tile products of its 32 columns, and what takes the bias away through 2 before
//              them, then one fma (with a minimum two) per scale of the warp's columns: at most one
//              for 16 columns, of Q2_K two
//   BF16, F16  all tile products of the warp's columns: one for 16 columns, of F16 two
//   F32        all fma of the warp's columns
// and 8 additions of warps' sums; its scale and its reference weight are rounded up to 4 times. The
// magnitude is |quant * scale * x|; with a bias |(quant + bias) * scale * x| and what takes it
// away, |bias * scale * x| or |(minimum - bias * scale) * x|: at most (|w| + 2 |minimum| + 320
// |scale|) |x|, as no bias is greater than 160.
size_t roundings_of(Format format, size_t warp_columns) {
  const size_t tile = tile_product_roundings();
  if (traits(format).block_elements > 1) {
    const size_t fma_columns = format == Format::kQ2_K ? 8 : 16;
    return 12 + 4 * tile + warp_columns / fma_columns;
  }
  if (format == Format::kF32) return 12 + warp_columns;
  return 12 + warp_columns / (format == Format::kF16 ? 8 : 16) * tile;
}

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
  const double unit = static_cast<double>(roundings_of(format(), warp_columns)) * 0x1p-24;
  const double relative = unit / (1 - unit);
  for (size_t row = 0; row < kRows; ++row) {
    const std::vector<float> w = weights.row(row);
    const std::vector<float> zeros = weights.row_of_zeros(row);
    const std::vector<float> ones = weights.row_of_ones(row);
    for (size_t token = 0; token < kTokens; ++token) {
      double sum = 0;
      double magnitude = 0;
      for (size_t k = 0; k < columns(); ++k) {
        const auto x = static_cast<double>(inputs.at(token, k));
        sum += static_cast<double>(w[k]) * x;
        const double beside = 2 * std::abs(zeros[k]) + 320 * std::abs(ones[k] - zeros[k]);
        magnitude += (static_cast<double>(std::abs(w[k])) + beside) * std::abs(x);
      }
      ASSERT_NEAR(static_cast<double>(output[token * kRows + row]), sum,
                  relative * magnitude + 1e-30)
          << "seed " << kSeed << ", row " << row << ", token " << token;
    }
  }
}

TEST_P(GpuProductOf, gives_a_token_the_same_bits_alone_and_among_others) {
  RandomEngine random(kSeed + 1);
  constexpr size_t kRows = 32 * 4 + 1;  // a block takes some, and then others
  const size_t few = std::min<size_t>(columns(), 64 * 9 + 32);
  const size_t block = traits(format()).block_elements;
  const size_t width = block == 256 ? 256 : few / 32 * 32;
  const Weights weights(format(), kRows, width, random);
  constexpr size_t kTokens = 70;  // in two windows
  const Inputs inputs(format(), kTokens, width, random);
  const std::vector<float> all = multiply_all(weights.matrix(), inputs, 0, kTokens, kTokens);
  struct Case {
    size_t first;
    uint32_t count;
    size_t limit;
  };
  for (const Case& some : {Case{0, 1, 1}, Case{63, 1, 1}, Case{29, 1, 16}, Case{5, 9, 16},
                           Case{17, 31, 32}, Case{3, 33, 64}, Case{40, 0, 8}, Case{2, 68, 256}}) {
    for (const bool split : {false, true}) {
      const std::vector<float> output =
          multiply_all(weights.matrix(), inputs, some.first, some.count, some.limit, split);
      ASSERT_TRUE(std::equal(output.begin(), output.end(),
                             all.begin() + static_cast<ptrdiff_t>(some.first * kRows)))
          << "seed " << kSeed + 1 << ", " << some.count << " tokens from " << some.first << " on"
          << (split ? ", split" : "");
    }
  }
}

// A kernel of few tokens has them all in shared memory, if they fit, and blocks that go on to other
// rows. One of 8 tokens has not space for as many columns.
TEST_P(GpuProductOf, gives_few_tokens_of_many_columns_the_same_bits) {
  RandomEngine random(kSeed + 2);
  constexpr size_t kRows = 32 * 4 + 2;
  constexpr size_t kTokens = 2;
  const Weights weights(format(), kRows, columns(), random);
  const Inputs inputs(format(), kTokens, columns(), random);
  const std::vector<float> many = multiply_all(weights.matrix(), inputs, 0, kTokens, 16);
  for (const size_t limit : {size_t{2}, size_t{8}}) {
    EXPECT_EQ(multiply_all(weights.matrix(), inputs, 0, kTokens, limit), many)
        << "seed " << kSeed + 2 << ", up to " << limit << " tokens";
  }
  const std::vector<float> one = multiply_all(weights.matrix(), inputs, 1, 1, 1);
  EXPECT_TRUE(std::equal(one.begin(), one.end(), many.begin() + kRows)) << "seed " << kSeed + 2;
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuProductOf, testing::ValuesIn(every_format()), name_of_format);

}  // namespace
}  // namespace lockstep
