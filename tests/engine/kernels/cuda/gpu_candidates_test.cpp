// The likeliest logits of a row, found on a GPU.
#include "engine/kernels/gpu_candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

using Row = std::vector<float>;

std::vector<GpuCandidateRow> find(const std::vector<Row>& rows, unsigned grid_rows) {
  const size_t columns = rows[0].size();
  const size_t stride = columns + 3;
  std::vector<float> logits(rows.size() * stride, kInfinity);  // between rows lies no logit
  for (size_t row = 0; row < rows.size(); ++row) {
    std::ranges::copy(rows[row], logits.begin() + static_cast<std::ptrdiff_t>(row * stride));
  }
  std::vector<uint32_t> words(rows.size() * gpu_candidate_words(columns), 0xABABABABU);
  std::vector<GpuCandidateRow> found(rows.size());
  const auto row_count = std::make_unique<uint32_t>(static_cast<uint32_t>(rows.size()));
  gpu_find_candidates(nullptr, {.row_count = row_count.get(),
                                .logits = logits.data(),
                                .stride = stride,
                                .columns = columns,
                                .words = words.data(),
                                .rows = found.data(),
                                .grid_rows = grid_rows});
  return found;
}

// By sorting all of them.
void expect_candidates(const GpuCandidateRow& found, const Row& row) {
  const auto value = [&](size_t token) { return std::isnan(row[token]) ? -kInfinity : row[token]; };
  std::vector<size_t> order(row.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return value(a) > value(b); });
  ASSERT_EQ(found.count, std::min(row.size(), kGpuCandidates));
  for (size_t index = 0; index < found.count; ++index) {
    ASSERT_EQ(static_cast<size_t>(found.tokens[index]), order[index]) << "candidate " << index;
    const float wanted = value(order[index]) + 0.0F;  // -0 is 0
    ASSERT_EQ(std::bit_cast<uint32_t>(found.logits[index]), std::bit_cast<uint32_t>(wanted));
  }
  const auto wrong = std::ranges::count_if(row, [](float x) { return !std::isfinite(x); });
  EXPECT_EQ(found.not_finite, static_cast<uint32_t>(wrong));
}

Row random_row(size_t columns, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 4);
  Row row(columns);
  for (float& logit : row) logit = normal(random);
  return row;
}

// Rows have one segment or several, and more than one block merges at once; rows without and with
// others beside them.
TEST(GpuCandidates, are_the_first_in_the_order_of_likelihood) {
  for (const size_t columns : {size_t{1}, size_t{150}, size_t{256}, size_t{257}, size_t{8192},
                               size_t{8193}, size_t{20'000}, size_t{34 * 8192 + 5}}) {
    SCOPED_TRACE(columns);
    const Row row = random_row(columns, columns);
    expect_candidates(find({row}, 1)[0], row);
  }
}

TEST(GpuCandidates, do_not_depend_on_other_rows_nor_on_the_grid) {
  std::vector<Row> rows;
  for (uint64_t seed = 0; seed < 5; ++seed) rows.push_back(random_row(9000, seed));
  for (const unsigned grid_rows : {1U, 2U, 8U}) {
    const auto found = find(rows, grid_rows);
    for (size_t row = 0; row < rows.size(); ++row) expect_candidates(found[row], rows[row]);
  }
}

TEST(GpuCandidates, of_equal_logits_the_lower_tokens_are_taken) {
  // All equal; few values; one value at the cut alone, across segments.
  expect_candidates(find({Row(17'000, -1.5F)}, 1)[0], Row(17'000, -1.5F));
  Row few = random_row(17'000, 3);
  for (float& logit : few) logit = std::round(logit / 4);
  expect_candidates(find({few}, 1)[0], few);
  Row cut(17'000, -2.0F);
  for (size_t token = 0; token < 100; ++token) cut[16'999 - 90 * token] = 1.0F;
  expect_candidates(find({cut}, 1)[0], cut);
}

TEST(GpuCandidates, zeros_are_equal_and_what_is_no_number_is_counted) {
  Row row = random_row(9000, 7);
  for (size_t token = 0; token < row.size(); token += 2) row[token] = token % 4 == 0 ? 0.0F : -0.0F;
  for (float& logit : row) logit = std::min(logit, 0.0F);
  expect_candidates(find({row}, 1)[0], row);
  row[1] = kNotANumber;
  row[8999] = -kNotANumber;
  row[4000] = kInfinity;
  row[5000] = -kInfinity;
  expect_candidates(find({row}, 1)[0], row);
  expect_candidates(find({Row(300, kNotANumber)}, 1)[0], Row(300, kNotANumber));
  // The greatest and the least that are numbers.
  Row extremes(9000, std::numeric_limits<float>::lowest());
  extremes[8500] = std::numeric_limits<float>::max();
  extremes[10] = std::numeric_limits<float>::denorm_min();
  expect_candidates(find({extremes}, 1)[0], extremes);
}

// The results of the pass before stay where they are, and the likeliest tokens are kept.
TEST(GpuCandidates, lie_behind_the_offset_of_the_pass) {
  const std::vector<Row> rows = {random_row(9000, 1), random_row(9000, 2)};
  std::vector<float> logits(rows[0]);
  logits.insert(logits.end(), rows[1].begin(), rows[1].end());
  std::vector<uint32_t> words(2 * gpu_candidate_words(9000));
  std::vector<GpuCandidateRow> found(6);
  for (GpuCandidateRow& row : found) row.count = 77;
  std::vector<uint32_t> picks(3, 99'999);
  const std::vector<uint32_t> numbers = {2, 3 * sizeof(GpuCandidateRow)};
  gpu_find_candidates(nullptr, {.row_count = numbers.data(),
                                .logits = logits.data(),
                                .stride = 9000,
                                .columns = 9000,
                                .words = words.data(),
                                .picks = picks.data(),
                                .rows = found.data(),
                                .result_offset = numbers.data() + 1,
                                .grid_rows = 2});
  for (const size_t row : {0U, 1U, 2U, 5U}) EXPECT_EQ(found[row].count, 77U);
  for (const size_t row : {0U, 1U}) {
    expect_candidates(found[3 + row], rows[row]);
    EXPECT_EQ(picks[row], static_cast<uint32_t>(found[3 + row].tokens[0]));
  }
  EXPECT_EQ(picks[2], 99'999U);
}

TEST(GpuCandidates, rows_that_the_batch_does_not_have_are_left_alone) {
  const auto row_count = std::make_unique<uint32_t>(0);
  const auto found = std::make_unique<GpuCandidateRow>();
  found->count = 77;
  gpu_find_candidates(
      nullptr,
      {.row_count = row_count.get(), .columns = 9000, .rows = found.get(), .grid_rows = 2});
  EXPECT_EQ(found->count, 77U);
}

}  // namespace
}  // namespace lockstep
