// Numbers of every size and kind in the products with bf16 activations: what is too small for a
// normal number, signs of zero, infinities and NaNs; and the rounding of activations to bf16.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/bf16_model.h"
#include "tests/engine/kernels/random_weights.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {

namespace {

constexpr size_t kTokens = 35;
constexpr size_t kRows = 35;
constexpr uint64_t kSeed = 71;

using Case = std::tuple<ProductRow, Format>;

// A bf16 whose exponent is within [least, greatest] (0 and -127 for what is below the normal
// numbers), 0 or -0 now and then.
float random_bf16(RandomEngine& random, int least, int greatest) {
  const auto sign = static_cast<uint16_t>(random() % 2 << 15U);
  if (random() % 8 == 0) return bf16_to_float(sign);
  const auto range = static_cast<uint64_t>(greatest - least + 1);
  const auto exponent = static_cast<uint64_t>(least + 127) + random() % range;
  return bf16_to_float(static_cast<uint16_t>(sign | exponent << 7U | random() % 128));
}

// Rows of a format as a file may hold them: `half` or `bf16` gives each number of 16 bits.
template <typename Half, typename Bf16>
std::vector<std::byte> rows_of(Format format, size_t columns, RandomEngine& random, Half half,
                               Bf16 bf16) {
  std::vector<std::byte> rows = random_rows(format, kRows, columns, random);
  const size_t block_bytes = traits(format).block_bytes;
  for (size_t block = 0; block < rows.size(); block += block_bytes) {
    if (format == Format::kBf16) {
      const uint16_t bits = float_to_bf16(bf16());
      std::memcpy(rows.data() + block, &bits, sizeof bits);
    } else {
      set_halves(format, half, {rows.data() + block, block_bytes});
    }
  }
  return rows;
}

class Bf16Extremes : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const ProductRow& row = std::get<0>(GetParam());
    if (!row.supported) GTEST_SKIP() << "this machine lacks the row '" << row.name << "'";
  }
  Format format() const { return std::get<1>(GetParam()); }
  size_t columns() const {
    const size_t block = traits(format()).block_elements;
    return block == 1 ? 77 : block * (block < 256 ? 3 : 1);
  }
  AlignedBuffer product(const RandomMatrix& matrix, const Activations& activations,
                        size_t token_count) const {
    AlignedBuffer output(token_count * kRows * sizeof(float));
    matmul_kernel(*std::get<0>(GetParam()).table, format(),
                  ActivationForm::kBf16)({.matrix = matrix.packed(),
                                          .panel_end = matrix.packed().panel_count(),
                                          .input = activations.row(0),
                                          .input_stride_bytes = activations.stride_bytes(),
                                          .token_count = token_count,
                                          .output = output.floats(),
                                          .output_stride = kRows});
    return output;
  }
  // Both as one number of tokens and as another: other kernels.
  void expect_definition(const RandomMatrix& matrix, const std::vector<float>& values) const {
    const Activations activations(*all_kernel_tables().front(), ActivationForm::kBf16, values,
                                  kTokens, columns());
    const std::vector<float> expected = model_product(matrix.packed(), activations, kTokens);
    for (const size_t token_count : {size_t{3}, kTokens}) {
      const AlignedBuffer output = product(matrix, activations, token_count);
      for (size_t i = 0; i < token_count * kRows; ++i) {
        ASSERT_TRUE(same_number(output.floats()[i], expected[i]))
            << output.floats()[i] << " instead of " << expected[i] << ": token " << i / kRows
            << " of " << token_count << ", row " << i % kRows << ", seed " << kSeed;
      }
    }
  }

 private:
  TileEmulation emulation_;
};

// Halves of every finite kind, those below the normal halves and both zeros among them.
float random_half(RandomEngine& random) {
  uint16_t bits = 0;
  do bits = static_cast<uint16_t>(random());
  while ((bits & 0x7C00U) == 0x7C00U);
  if (random() % 8 == 0) bits = static_cast<uint16_t>(bits & 0x8000U);
  return half_to_float(bits);
}

TEST_P(Bf16Extremes, numbers_of_all_sizes_follow_the_definition) {
  RandomEngine random(kSeed);
  const RandomMatrix matrix(format(), kRows, columns(),
                            rows_of(
                                format(), columns(), random, [&] { return random_half(random); },
                                [&] { return random_bf16(random, -127, 126); }));
  std::vector<float> values(kTokens * columns());
  for (float& value : values) value = random_bf16(random, -127, 126);
  expect_definition(matrix, values);
}

// Products, and sums of products, on both sides of the least normal number, 2^-126.
TEST_P(Bf16Extremes, results_below_the_normal_numbers_are_zero) {
  RandomEngine random(kSeed + 1);
  const bool blocks = traits(format()).block_elements > 1;
  const RandomMatrix matrix(
      format(), kRows, columns(),
      rows_of(
          format(), columns(), random, [&] { return random_bf16(random, -14, -13); },
          [&] { return random_bf16(random, -15, -11); }));
  // Quants and their scales bring up to 13 powers of two more.
  for (int exponent = blocks ? -126 : -114; exponent <= -108; exponent += 2) {
    std::vector<float> values(kTokens * columns());
    for (float& value : values) value = random_bf16(random, exponent, exponent + 2);
    expect_definition(matrix, values);
    // Sums that cancel are small again.
    for (size_t i = 1; i < values.size(); i += 2) values[i] = -values[i - 1];
    expect_definition(matrix, values);
  }
}

// Were they not, they would weigh against the largest.
TEST_P(Bf16Extremes, operands_below_the_normal_numbers_are_zero) {
  RandomEngine random(kSeed + 1);
  const auto small = [&] { return random_bf16(random, -127, -127); };
  const auto large = [&] { return random_bf16(random, 15, 15); };
  const std::vector<std::byte> large_rows = rows_of(format(), columns(), random, large, large);
  std::vector<float> values(kTokens * columns());
  for (float& value : values) value = small();
  expect_definition(RandomMatrix(format(), kRows, columns(), large_rows), values);
  // Weights this small are in no format but BF16 and MXFP4 (whose least scales matmul_test.cpp
  // has); the least of the others are far from it.
  const auto least = [&] { return random_half(random) < 0 ? -0x1p-24F : 0x1p-24F; };
  const std::vector<std::byte> small_rows = rows_of(format(), columns(), random, least, small);
  for (float& value : values) value = random_bf16(random, 100, 110);
  expect_definition(RandomMatrix(format(), kRows, columns(), small_rows), values);
}

// No row promises which NaN it gives, or the sign of it.
TEST_P(Bf16Extremes, infinities_and_nans_follow_the_definition) {
  RandomEngine random(kSeed + 2);
  const auto any_half = [&] { return half_to_float(static_cast<uint16_t>(random())); };
  const auto any_bf16 = [&] { return bf16_to_float(static_cast<uint16_t>(random())); };
  const bool blocks = traits(format()).block_elements > 1;
  for (const uint64_t rarity : {1U, 100U}) {
    // A NaN spoils its row's results: in most there must be none.
    const auto half = [&] {
      return random() % rarity == 0 ? any_half() : blocks ? 0.01F : random_half(random);
    };
    const auto bf16 = [&] { return random() % rarity == 0 ? any_bf16() : 0.25F; };
    const RandomMatrix matrix(format(), kRows, columns(),
                              rows_of(format(), columns(), random, half, bf16));
    std::vector<float> values(kTokens * columns());
    for (float& value : values) value = bf16();
    expect_definition(matrix, values);
  }
  // Every NaN that a half can be, and both infinities, as scale or weight.
  for (uint32_t bits = 0x7C00; bits < 0x8000; bits += format() == Format::kF16 ? 1 : 31) {
    std::vector<std::byte> rows = random_rows(format(), kRows, columns(), random);
    set_halves(
        format(), [&] { return half_to_float(static_cast<uint16_t>(bits | random() % 2 << 15U)); },
        rows);
    if (format() == Format::kBf16) break;
    const RandomMatrix matrix(format(), kRows, columns(), std::move(rows));
    const std::vector<float> ones(columns(), 1.0F);
    const Activations activations(*all_kernel_tables().front(), ActivationForm::kBf16, ones, 1,
                                  columns());
    const AlignedBuffer output = product(matrix, activations, 1);
    const std::vector<float> expected = model_product(matrix.packed(), activations, 1);
    for (size_t row = 0; row < kRows; ++row) {
      ASSERT_TRUE(same_number(output.floats()[row], expected[row]))
          << output.floats()[row] << " instead of " << expected[row] << ": half " << bits
          << ", row " << row;
    }
  }
}

// Whatever mode the caller computes in, the product is the same and the mode stays.
TEST_P(Bf16Extremes, the_callers_mode_for_small_numbers_does_not_matter_and_is_kept) {
  RandomEngine random(kSeed + 3);
  const RandomMatrix matrix(
      format(), kRows, columns(),
      rows_of(
          format(), columns(), random, [&] { return random_bf16(random, -24, -10); },
          [&] { return random_bf16(random, -67, -57); }));
  std::vector<float> values(kTokens * columns());
  for (float& value : values) value = random_bf16(random, -120, -60);
  const Activations activations(*all_kernel_tables().front(), ActivationForm::kBf16, values,
                                kTokens, columns());
  const AlignedBuffer expected = product(matrix, activations, kTokens);
  const unsigned mode = _mm_getcsr();
  for (const unsigned small : {0x0000U, 0x8000U, 0x0040U, 0x8040U}) {
    const unsigned wanted = (mode & ~0x8040U) | small;
    _mm_setcsr(wanted);
    const AlignedBuffer output = product(matrix, activations, kTokens);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(mode);
    // The lowest six bits only tell what has happened.
    EXPECT_EQ(after & ~0x3FU, wanted & ~0x3FU);
    EXPECT_EQ(0, std::memcmp(output.data(), expected.data(), kTokens * kRows * sizeof(float)));
  }
}

std::vector<Format> formats() {
  std::vector<Format> formats;
  for (const FormatTraits& format : all_formats()) {
    if (format.format != Format::kF32) formats.push_back(format.format);
  }
  return formats;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return fmt::format("{}_{}", std::get<0>(info.param).name, traits(std::get<1>(info.param)).name);
}

INSTANTIATE_TEST_SUITE_P(Rows, Bf16Extremes,
                         testing::Combine(testing::ValuesIn(product_rows()),
                                          testing::ValuesIn(formats())),
                         case_name);

class ToBf16 : public testing::TestWithParam<const KernelTable*> {
 protected:
  void SetUp() override {
    if (!runs_here(table())) {
      GTEST_SKIP() << "this machine lacks the row '" << table().name << "'";
    }
  }
  const KernelTable& table() const { return *GetParam(); }
};

// Every bf16 with what may lie below its last bit: halves, and a little to each side of them.
TEST_P(ToBf16, rounds_every_kind_of_number_to_nearest_even) {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0x0000U, 0x0001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      values.push_back(std::bit_cast<float>(upper << 16U | lower));
    }
  }
  std::vector<uint16_t> bits(values.size());
  table().to_bf16(values.data(), values.size(), reinterpret_cast<std::byte*>(bits.data()));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(bits[i], float_to_bf16(values[i])) << std::bit_cast<uint32_t>(values[i]);
  }
}

TEST_P(ToBf16, takes_any_number_of_elements_at_any_place_and_writes_no_others) {
  RandomEngine random(kSeed + 4);
  const std::vector<float> values = random_values(100, random);
  for (size_t count = 0; count <= 50; ++count) {
    for (size_t from = 0; from < 5; ++from) {
      std::vector<uint16_t> bits(100, 0xABCD);
      table().to_bf16(values.data() + from, count,
                      reinterpret_cast<std::byte*>(bits.data() + 2 * from + 1));
      for (size_t i = 0; i < bits.size(); ++i) {
        const bool inside = i >= 2 * from + 1 && i < 2 * from + 1 + count;
        const uint16_t expected = inside ? float_to_bf16(values[i - from - 1]) : 0xABCD;
        ASSERT_EQ(bits[i], expected) << count << " from " << from << ", place " << i;
      }
    }
  }
}

std::string table_name(const testing::TestParamInfo<const KernelTable*>& info) {
  return std::string(info.param->name);
}

INSTANTIATE_TEST_SUITE_P(Rows, ToBf16,
                         testing::ValuesIn(all_kernel_tables().begin(), all_kernel_tables().end()),
                         table_name);

}  // namespace

}  // namespace lockstep
