// Activations of the form kQ8, for every row of the kernel table that this machine runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/random_weights.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {

namespace {

class Quantize : public testing::TestWithParam<const KernelTable*> {
 protected:
  void SetUp() override {
    if (!runs_here(table())) {
      GTEST_SKIP() << "this machine lacks the row '" << table().name << "'";
    }
  }
  const KernelTable& table() const { return *GetParam(); }
};

AlignedBuffer quantized(const KernelTable& table, const std::vector<float>& values) {
  AlignedBuffer row(activation_row_bytes(ActivationForm::kQ8, values.size()));
  table.quantize(values.data(), values.size(), 0, values.size(), row.data());
  return row;
}

template <typename T>
T read(const AlignedBuffer& row, size_t part, size_t index) {
  T value;
  std::memcpy(&value, row.data() + part + index * sizeof(T), sizeof value);
  return value;
}

std::vector<float> values_of_many_magnitudes(size_t count) {
  RandomEngine random(21);
  std::vector<float> values = random_values(count, random);
  for (size_t i = 0; i < count; ++i) {
    values[i] = std::ldexp(values[i], static_cast<int>(i / 32 % 41) * 6 - 130);
  }
  std::fill_n(values.begin() + 64, 32, 0.0F);
  return values;
}

constexpr size_t kColumns = 32 * 101;

TEST_P(Quantize, a_value_is_within_half_a_step) {
  const std::vector<float> values = values_of_many_magnitudes(kColumns);
  const AlignedBuffer row = quantized(table(), values);
  const Q8Row layout = q8_row(kColumns);
  for (size_t k = 0; k < kColumns; ++k) {
    const auto scale = static_cast<double>(read<float>(row, layout.scales, k / 32));
    const double quant = read<int8_t>(row, 0, k);
    ASSERT_LE(std::abs(quant), 127);
    // The quotient, of magnitude up to 127, is rounded to 24 bits before it is rounded to an
    // integer: 127 * 2^-24 more. A scale of 0 stands for a block below 127 normal minimums.
    const double bound = scale == 0 ? 127.0 * static_cast<double>(std::numeric_limits<float>::min())
                                    : scale * (0.5 + std::ldexp(127.0, -24));
    ASSERT_LE(std::abs(static_cast<double>(values[k]) - scale * quant), bound) << "at " << k;
  }
}

TEST_P(Quantize, the_largest_of_a_block_is_127_steps) {
  const std::vector<float> values = values_of_many_magnitudes(kColumns);
  const AlignedBuffer row = quantized(table(), values);
  for (size_t block = 0; block < kColumns / 32; ++block) {
    float largest = 0;
    for (size_t k = 0; k < 32; ++k) {
      largest = std::max(largest, std::abs(values[block * 32 + k]));
    }
    const float step = largest / 127.0F;
    const float expected = step < std::numeric_limits<float>::min() ? 0.0F : step;
    ASSERT_EQ(read<float>(row, q8_row(kColumns).scales, block), expected) << "block " << block;
  }
}

TEST_P(Quantize, the_stored_sums_are_those_of_the_quants) {
  const AlignedBuffer row = quantized(table(), values_of_many_magnitudes(kColumns));
  const Q8Row layout = q8_row(kColumns);
  for (size_t block = 0; block < kColumns / 32; ++block) {
    int32_t first = 0;
    int32_t whole = 0;
    for (size_t k = 0; k < 32; ++k) {
      const int32_t quant = read<int8_t>(row, 0, block * 32 + k);
      whole += quant;
      if (k < 16) first += quant;
    }
    ASSERT_EQ(read<int32_t>(row, layout.sums, block), -whole);
    ASSERT_EQ(read<int32_t>(row, layout.first_sums, block), -first);
    ASSERT_EQ(read<float>(row, layout.scaled_sums, block),
              read<float>(row, layout.scales, block) * static_cast<float>(-whole));
  }
}

TEST_P(Quantize, any_part_of_a_row_gives_the_bits_of_the_whole) {
  const std::vector<float> values = values_of_many_magnitudes(kColumns);
  const AlignedBuffer whole = quantized(table(), values);
  AlignedBuffer parts(activation_row_bytes(ActivationForm::kQ8, kColumns));
  for (size_t begin = 0; begin < kColumns; begin += 96) {
    const size_t count = std::min<size_t>(96, kColumns - begin);
    table().quantize(values.data() + begin, kColumns, begin, count, parts.data());
  }
  EXPECT_EQ(0, std::memcmp(whole.data(), parts.data(), q8_row(kColumns).size_bytes));
}

TEST_P(Quantize, gives_the_bits_of_the_scalar_row_whatever_the_values) {
  std::vector<float> values = values_of_many_magnitudes(kColumns);
  values[3] = std::numeric_limits<float>::infinity();
  values[40] = std::numeric_limits<float>::quiet_NaN();
  values[100] = std::numeric_limits<float>::denorm_min();
  values[130] = -std::numeric_limits<float>::max();
  // Halfway between two steps of 1, and beside it.
  for (size_t k = 0; k < 32; ++k) values[160 + k] = static_cast<float>(k) - 15.5F;
  values[160] = 127.0F;
  const AlignedBuffer row = quantized(table(), values);
  const AlignedBuffer scalar = quantized(*all_kernel_tables().front(), values);
  const Q8Row layout = q8_row(kColumns);
  for (size_t k = 0; k < kColumns; ++k) {
    ASSERT_EQ(read<int8_t>(row, 0, k), read<int8_t>(scalar, 0, k)) << "at " << k;
  }
  EXPECT_EQ(0, std::memcmp(row.data(), scalar.data(), layout.size_bytes));
}

std::string case_name(const testing::TestParamInfo<const KernelTable*>& info) {
  return std::string(info.param->name);
}

INSTANTIATE_TEST_SUITE_P(Tables, Quantize,
                         testing::ValuesIn(all_kernel_tables().begin(), all_kernel_tables().end()),
                         case_name);

}  // namespace

}  // namespace lockstep
