// The products of BF16 weights with pairs of bf16 activations, for every row of the kernel table
// that this machine runs: bit for bit what their definition says, however many tokens and
// panels there are, whatever the numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/bf16_model.h"
#include "tests/engine/kernels/random_weights.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

constexpr size_t kTokens = 41;
constexpr size_t kRows = 85;  // a last panel of 5 rows
constexpr uint64_t kSeed = 83;
constexpr float kUntouched = -12345.0F;

class Bf16Dots : public testing::TestWithParam<const KernelTable*> {
 protected:
  void SetUp() override {
    if (!runs_here(*GetParam())) {
      GTEST_SKIP() << "this machine lacks the row '" << GetParam()->name << "'";
    }
  }

  // All rows for tokens [first, first + tokens), panels [0, 2) apart from the others.
  std::vector<float> product(const RandomMatrix& matrix, const Activations& activations,
                             size_t first, size_t tokens) const {
    const size_t stride = activation_stride(kRows);
    AlignedBuffer output(tokens * stride * sizeof(float));
    for (size_t i = 0; i < tokens * stride; ++i) output.floats()[i] = kUntouched;
    const size_t panels = matrix.packed().panel_count();
    for (const auto& [begin, end] : {std::pair<size_t, size_t>(0, 2), {2, panels}}) {
      matmul_kernel(*GetParam(), Format::kBf16,
                    ActivationForm::kBf16Dots)({.matrix = matrix.packed(),
                                                .panel_begin = begin,
                                                .panel_end = end,
                                                .input = activations.row(first),
                                                .input_stride_bytes = activations.stride_bytes(),
                                                .token_count = tokens,
                                                .output = output.floats(),
                                                .output_stride = stride});
    }
    std::vector<float> rows;
    for (size_t token = 0; token < tokens; ++token) {
      const float* row = output.floats() + token * stride;
      rows.insert(rows.end(), row, row + kRows);
      for (size_t beyond = kRows; beyond < stride; ++beyond) EXPECT_EQ(row[beyond], kUntouched);
    }
    return rows;
  }
};

// A definition in plain arithmetic that knows nothing of vectors.
std::vector<float> expected_product(const RandomMatrix& matrix, const Activations& activations) {
  const size_t columns = matrix.packed().columns;
  const auto input = [&](size_t token, size_t k) {
    uint16_t bits = 0;
    if (k < columns) std::memcpy(&bits, activations.row(token) + k * sizeof bits, sizeof bits);
    return bf16_to_float(bits);
  };
  std::vector<float> product;
  for (size_t token = 0; token < kTokens; ++token) {
    for (size_t row = 0; row < kRows; ++row) {
      std::vector<float> weights = matrix.dequantized(row);
      weights.resize(columns + columns % 2);
      float sum = 0;
      for (size_t k = 0; k < columns; k += 2) {
        sum = model_fma(weights[k + 1], input(token, k + 1), sum);
        sum = model_fma(weights[k], input(token, k), sum);
      }
      product.push_back(sum);
    }
  }
  return product;
}

std::string first_difference(const std::vector<float>& values, const float* wanted) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (same_number(values[i], wanted[i])) continue;
    return fmt::format("token {}, row {}: {} instead of {}", i / kRows, i % kRows, values[i],
                       wanted[i]);
  }
  return {};
}

TEST_P(Bf16Dots, are_bit_for_bit_their_definition) {
  for (const size_t columns : {1, 2, 33, 64, 299, 512}) {
    RandomEngine random(kSeed + columns);
    const RandomMatrix matrix(Format::kBf16, kRows, columns, random);
    const Activations activations(*all_kernel_tables().front(), ActivationForm::kBf16Dots,
                                  random_values(kTokens * columns, random), kTokens, columns);
    const std::vector<float> wanted = expected_product(matrix, activations);
    for (const size_t tokens : {1, 2, 3, 5, 8, 15, 41}) {
      const size_t first = tokens < kTokens ? 4 : 0;
      EXPECT_EQ(first_difference(product(matrix, activations, first, tokens),
                                 wanted.data() + first * kRows),
                "")
          << columns << " columns, " << tokens << " tokens, seed " << kSeed;
    }
  }
}

// Exponents from the least to the greatest, zeros of both signs, infinities, NaNs: numbers below
// the normal ones appear as weights, as activations, as products and as sums.
TEST_P(Bf16Dots, take_numbers_below_the_normal_ones_for_zero) {
  constexpr size_t kColumns = 6;
  RandomEngine random(kSeed);
  for (int round = 0; round < 60; ++round) {
    const bool small = round % 3 != 0;
    const auto any_bits = [&] {
      const auto sign = static_cast<uint16_t>(random() % 2 << 15U);
      const uint64_t exponent = small ? random() % 140 : random() % 256;
      return static_cast<uint16_t>(sign | exponent << 7U | random() % 128);
    };
    std::vector<std::byte> rows(kRows * kColumns * sizeof(uint16_t));
    for (size_t at = 0; at < rows.size(); at += sizeof(uint16_t)) {
      const uint16_t bits = any_bits();
      std::memcpy(rows.data() + at, &bits, sizeof bits);
    }
    const RandomMatrix matrix(Format::kBf16, kRows, kColumns, std::move(rows));
    std::vector<float> values(kTokens * kColumns);
    for (float& value : values) value = bf16_to_float(any_bits());
    const Activations activations(*all_kernel_tables().front(), ActivationForm::kBf16Dots, values,
                                  kTokens, kColumns);
    EXPECT_EQ(first_difference(product(matrix, activations, 0, kTokens),
                               expected_product(matrix, activations).data()),
              "")
        << "round " << round << ", seed " << kSeed;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, Bf16Dots,
                         testing::ValuesIn(all_kernel_tables().begin(), all_kernel_tables().end()),
                         [](const auto& tested) { return std::string(tested.param->name); });

}  // namespace
}  // namespace lockstep
