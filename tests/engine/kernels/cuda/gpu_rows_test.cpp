// Rows of activations on a GPU.
#include "engine/kernels/gpu_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "engine/base/checked_math.h"
#include "engine/kernels/gpu_values.h"
#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/format.h"
#include "tests/engine/kernels/cuda/gpu_cache.h"

namespace lockstep {
namespace {

constexpr uint16_t kUntouched = 0x1234;
constexpr float kLeftAlone = -5.0F;

// `tokens` of one sequence, logits wanted of every third.
GpuTestBatch batch_of(uint32_t tokens) {
  GpuTestBatch batch({.tokens = 40, .sequences = 1, .pages = 4, .logits = 40});
  const std::vector<uint32_t> pages = {3, 1};
  const uint32_t sequence = batch.writer().add_sequence(pages);
  for (uint32_t token = 0; token < tokens; ++token) {
    batch.writer().add_prompted(token, 7 * token, sequence);
    if (token % 3 == 1) batch.writer().want_logits();
  }
  batch.writer().end();
  return batch;
}

TEST(GpuRows, norm_gives_the_bits_that_weigh_does) {
  const KernelTable& scalar = *all_kernel_tables().front();
  for (const size_t columns : {size_t{32}, size_t{200}, size_t{420}}) {
    const size_t padded = round_up<size_t>(columns, 32);
    const std::vector<float> residual = random_floats(11 * padded, 1);
    const std::vector<float> weight = random_floats(columns, 2);
    for (const GpuRowSet which : {GpuRowSet::kTokens, GpuRowSet::kLogits}) {
      const GpuTestBatch batch = batch_of(11);
      std::vector<uint16_t> rows(12 * padded, kUntouched);
      std::vector<float> floats(12 * padded, kLeftAlone);
      std::vector<float> sums(12 * padded / 32, -1.0F);
      gpu_norm_rows(nullptr, {.batch = batch.batch(),
                              .which = which,
                              .residual = residual.data(),
                              .residual_stride = padded,
                              .columns = columns,
                              .weight = weight.data(),
                              .rows = {rows.data(), padded, floats.data(), padded},
                              .sums = sums.data(),
                              .sum_stride = padded / 32,
                              .grid_rows = 3});
      const size_t count = which == GpuRowSet::kTokens ? 11 : 4;
      std::vector<float> product(columns);
      std::vector<float> expected(padded / 32);
      for (size_t row = 0; row < count; ++row) {
        const size_t token = which == GpuRowSet::kTokens ? row : 3 * row + 1;
        scalar.weigh(residual.data() + token * padded, weight.data(), columns, product.data(),
                     expected.data());
        for (size_t i = 0; i < padded; ++i) {
          const uint16_t value = i < columns ? float_to_bf16(product[i]) : uint16_t{0};
          ASSERT_EQ(rows[row * padded + i], value) << row << ", column " << i;
          ASSERT_EQ(floats[row * padded + i], i < columns ? product[i] : kLeftAlone);
        }
        for (size_t chunk = 0; chunk < padded / 32; ++chunk) {
          ASSERT_EQ(sums[row * padded / 32 + chunk], expected[chunk]) << row << ", " << chunk;
        }
      }
      EXPECT_EQ(rows[count * padded], kUntouched);
      EXPECT_EQ(floats[count * padded], kLeftAlone);
      EXPECT_EQ(sums[count * padded / 32], -1.0F);
    }
  }
}

TEST(GpuRows, norm_of_rows_of_logits_reads_them_where_the_residual_has_no_others) {
  const KernelTable& scalar = *all_kernel_tables().front();
  const std::vector<float> residual = random_floats(4 * 40, 7);
  const std::vector<float> weight = random_floats(40, 8);
  const GpuTestBatch batch = batch_of(11);
  std::vector<float> floats(5 * 40, kLeftAlone);
  std::vector<float> sums(5 * 2, -1.0F);
  gpu_norm_rows(nullptr, {.batch = batch.batch(),
                          .which = GpuRowSet::kLogits,
                          .has_logit_rows = true,
                          .residual = residual.data(),
                          .residual_stride = 40,
                          .columns = 40,
                          .weight = weight.data(),
                          .rows = {.f32 = floats.data(), .f32_stride = 40},
                          .sums = sums.data(),
                          .sum_stride = 2});
  std::vector<float> product(40);
  std::vector<float> expected(2);
  for (size_t row = 0; row < 4; ++row) {
    scalar.weigh(residual.data() + row * 40, weight.data(), 40, product.data(), expected.data());
    for (size_t i = 0; i < 40; ++i) ASSERT_EQ(floats[row * 40 + i], product[i]) << row;
    for (size_t chunk = 0; chunk < 2; ++chunk) ASSERT_EQ(sums[row * 2 + chunk], expected[chunk]);
  }
  EXPECT_EQ(floats[160], kLeftAlone);
}

TEST(GpuRows, of_both_forms_one_may_be_missing) {
  const std::vector<float> input = random_floats(2 * 40, 6);
  const std::vector<float> weight(40, 1.0F);
  std::vector<float> sums(2 * 2);
  const GpuTestBatch batch = batch_of(2);
  for (const bool bf16 : {false, true}) {
    std::vector<uint16_t> rows(2 * 64, kUntouched);
    std::vector<float> floats(2 * 64, kLeftAlone);
    const GpuRows output = {bf16 ? rows.data() : nullptr, 64, bf16 ? nullptr : floats.data(), 64};
    gpu_compute_elements(nullptr, {.walk = {.batch = batch.batch()},
                                   .x = input.data(),
                                   .x_stride = 40,
                                   .columns = 40,
                                   .output = {.rows = output}});
    gpu_norm_rows(nullptr, {.batch = batch.batch(),
                            .residual = input.data(),
                            .residual_stride = 40,
                            .columns = 40,
                            .weight = weight.data(),
                            .rows = output,
                            .sums = sums.data(),
                            .sum_stride = 2});
    for (size_t i = 0; i < 40; ++i) {
      EXPECT_EQ(rows[64 + i], bf16 ? float_to_bf16(input[40 + i]) : kUntouched);
      EXPECT_EQ(floats[64 + i], bf16 ? kLeftAlone : input[40 + i]);
    }
  }
}

void expect_rotary_table(double magnitude) {
  const GpuTestBatch batch = batch_of(9);
  std::vector<double> frequencies;
  for (int pair = 0; pair < 24; ++pair) frequencies.push_back(std::pow(10000.0, -pair / 24.0));
  std::vector<float> table(10 * 50, -7.0F);
  gpu_rotary_table(nullptr, {.batch = batch.batch(),
                             .frequencies = frequencies.data(),
                             .pairs = frequencies.size(),
                             .table = table.data(),
                             .stride = 50,
                             .magnitude = magnitude,
                             .grid_rows = 2});
  for (size_t token = 0; token < 9; ++token) {
    for (size_t pair = 0; pair < 24; ++pair) {
      const double angle = static_cast<double>(7 * token) * frequencies[pair];
      EXPECT_EQ(table[token * 50 + pair], static_cast<float>(magnitude * std::cos(angle)));
      EXPECT_EQ(table[token * 50 + 24 + pair], static_cast<float>(magnitude * std::sin(angle)));
    }
  }
  EXPECT_EQ(table[450], -7.0F);
}

TEST(GpuRows, rotary_angles_are_those_of_the_positions) {
  expect_rotary_table(1);
}

TEST(GpuRows, cosines_and_sines_are_multiplied_by_a_magnitude) {
  expect_rotary_table(1.1386294361119891);
}

}  // namespace
}  // namespace lockstep
