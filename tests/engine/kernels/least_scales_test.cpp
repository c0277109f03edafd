// MXFP4's two least scales, 2^-128 and 2^-127, are below the normal numbers: int8 products compute
// with them as they are, products of bf16 activations take them for zero.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/random_weights.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

constexpr size_t kRows = 16;
constexpr size_t kColumns = 64;
constexpr size_t kTokens = 5;

class LeastScales : public testing::TestWithParam<const KernelTable*> {
 protected:
  void SetUp() override {
    if (!runs_here(*GetParam())) {
      GTEST_SKIP() << "this machine lacks the row '" << GetParam()->name << "'";
    }
  }

 private:
  TileEmulation emulation_;
};

// A matrix whose every scale is 2^(exponent - 128).
RandomMatrix matrix_of(unsigned exponent) {
  RandomEngine random(91);
  std::vector<std::byte> rows = random_rows(Format::kMxfp4, kRows, kColumns, random);
  const size_t block_bytes = traits(Format::kMxfp4).block_bytes;
  for (size_t block = 0; block < rows.size(); block += block_bytes) {
    rows[block] = static_cast<std::byte>(exponent);
  }
  return {Format::kMxfp4, kRows, kColumns, std::move(rows)};
}

// Large, so that results are normal numbers.
std::vector<float> large_values() {
  RandomEngine random(92);
  std::vector<float> values = random_values(kTokens * kColumns, random);
  for (float& value : values) value = std::ldexp(value, 100);
  return values;
}

std::vector<float> product(const KernelTable& table, const RandomMatrix& matrix,
                           ActivationForm form) {
  const Activations activations(table, form, large_values(), kTokens, kColumns);
  AlignedBuffer output(kTokens * kRows * sizeof(float));
  matmul_kernel(table, Format::kMxfp4, form)({.matrix = matrix.packed(),
                                              .panel_end = 1,
                                              .input = activations.row(0),
                                              .input_stride_bytes = activations.stride_bytes(),
                                              .token_count = kTokens,
                                              .output = output.floats(),
                                              .output_stride = kRows});
  return {output.floats(), output.floats() + kTokens * kRows};
}

TEST_P(LeastScales, int8_products_compute_with_them) {
  const std::vector<float> normal = product(*GetParam(), matrix_of(10), ActivationForm::kQ8);
  for (const unsigned exponent : {0U, 1U, 2U}) {
    const std::vector<float> small = product(*GetParam(), matrix_of(exponent), ActivationForm::kQ8);
    for (size_t i = 0; i < small.size(); ++i) {
      // Both are the same but for a power of two.
      ASSERT_NE(small[i], 0.0F) << exponent << ", " << i;
      ASSERT_EQ(small[i], std::ldexp(normal[i], static_cast<int>(exponent) - 10))
          << exponent << ", " << i;
    }
  }
}

TEST_P(LeastScales, products_of_bf16_take_them_for_zero) {
  for (const unsigned exponent : {0U, 1U, 2U}) {
    for (const float value : product(*GetParam(), matrix_of(exponent), ActivationForm::kBf16)) {
      if (exponent < 2) {
        ASSERT_EQ(value, 0.0F) << exponent;
      } else {
        ASSERT_NE(value, 0.0F);
      }
    }
  }
}

std::string row_name(const testing::TestParamInfo<const KernelTable*>& info) {
  return std::string(info.param->name);
}

INSTANTIATE_TEST_SUITE_P(Tables, LeastScales,
                         testing::ValuesIn(all_kernel_tables().begin(), all_kernel_tables().end()),
                         row_name);

}  // namespace
}  // namespace lockstep
