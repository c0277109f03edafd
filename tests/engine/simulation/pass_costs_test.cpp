// Tests what passes are taken to cost by what was measured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "engine/scheduler/scheduler.h"
#include "engine/simulation/simulation.h"

namespace lockstep {
namespace {

// A pass without any takes 20 ms; the third and later sequences cost more than the second.
const PassCosts kCosts = {.generation = {{1, 0.022}, {2, 0.024}, {8, 0.048}},
                          .generated_key = 1e-6,
                          .prompts = 0.01,
                          .prompt_token = 0.003,
                          .prompt_key = 2e-6};
constexpr size_t kBatchTokens = 128;

double sum_of_keys(size_t begin, size_t count) {
  double sum = 0;
  for (size_t token = 0; token < count; ++token) sum += static_cast<double>(begin + token + 1);
  return sum;
}

// A machine with exactly these costs measures this.
BenchRow prompt_row(size_t tokens, size_t depth) {
  const size_t passes = (tokens + kBatchTokens - 1) / kBatchTokens;
  const double seconds = static_cast<double>(passes) * (0.02 + kCosts.prompts) +
                         kCosts.prompt_token * static_cast<double>(tokens) +
                         kCosts.prompt_key * sum_of_keys(depth, tokens);
  return {.prompt_tokens = tokens,
          .depth_tokens = depth,
          .tokens_per_second = static_cast<double>(tokens) / seconds};
}

BenchRow generation_row(const PassCosts::Generation& pass, size_t depth) {
  constexpr size_t kTokens = 16;
  const auto sequences = static_cast<double>(pass.tokens);
  const double seconds =
      kTokens * pass.seconds + sequences * kCosts.generated_key * sum_of_keys(depth, kTokens);
  return {.generated_tokens = kTokens,
          .depth_tokens = depth,
          .sequences = pass.tokens,
          .tokens_per_second = kTokens * sequences / seconds};
}

std::vector<BenchRow> all_rows() {
  std::vector<BenchRow> rows = {prompt_row(64, 0), prompt_row(500, 0), prompt_row(500, 2048)};
  for (const PassCosts::Generation& pass : kCosts.generation) {
    rows.push_back(generation_row(pass, 0));
    rows.push_back(generation_row(pass, 2048));
  }
  return rows;
}

void expect_generation(const PassCosts& costs, double tolerance) {
  ASSERT_EQ(costs.generation.size(), kCosts.generation.size());
  for (size_t at = 0; at < costs.generation.size(); ++at) {
    const auto& [tokens, seconds] = kCosts.generation[at];
    EXPECT_EQ(costs.generation[at].tokens, tokens);
    EXPECT_NEAR(costs.generation[at].seconds, seconds, tolerance * seconds);
  }
}

TEST(PassCosts, are_found_in_what_was_measured) {
  const auto rows = all_rows();
  const auto costs = fit_pass_costs(rows, kBatchTokens);
  ASSERT_TRUE(costs) << costs.error().message;
  expect_generation(*costs, 0.01);
  EXPECT_NEAR(costs->prompts, kCosts.prompts, 0.02 * kCosts.prompts);
  EXPECT_NEAR(costs->prompt_token, kCosts.prompt_token, 0.01 * kCosts.prompt_token);
  EXPECT_NEAR(costs->prompt_key, kCosts.prompt_key, 0.01 * kCosts.prompt_key);
  EXPECT_NEAR(costs->generated_key, kCosts.generated_key, 0.01 * kCosts.generated_key);
  EXPECT_LT(worst_deviation(*costs, rows, kBatchTokens), 0.001);
}

TEST(PassCosts, deviate_by_as_much_as_the_worst_row) {
  auto rows = all_rows();
  rows.back().tokens_per_second *= 2;
  EXPECT_NEAR(worst_deviation(kCosts, rows, kBatchTokens), 1, 0.001);
}

TEST(PassCosts, without_depths_leave_keys_out) {
  auto rows = all_rows();
  std::erase_if(rows, [](const BenchRow& row) { return row.depth_tokens > 0; });
  const auto costs = fit_pass_costs(rows, kBatchTokens);
  ASSERT_TRUE(costs);
  EXPECT_EQ(costs->generated_key, 0);
  EXPECT_EQ(costs->prompt_key, 0);
  expect_generation(*costs, 0.01);
}

TEST(PassCosts, cannot_be_told_from_one_length_or_one_number_of_sequences) {
  auto one_length = all_rows();
  std::erase_if(one_length, [](const BenchRow& row) { return row.prompt_tokens == 64; });
  auto one_number = all_rows();
  std::erase_if(one_number,
                [](const BenchRow& row) { return row.generated_tokens > 0 && row.sequences != 8; });
  for (const auto& rows : {one_length, one_number}) {
    const auto costs = fit_pass_costs(rows, kBatchTokens);
    ASSERT_FALSE(costs);
    EXPECT_THAT(costs.error().message, testing::HasSubstr("--sequences 1,2,4,8"));
  }
}

TEST(PassCosts, of_a_pass_are_those_of_its_chunks) {
  Schedule schedule;
  schedule.chunks = {{.begin = 99, .count = 1, .generated = true},
                     {.begin = 9, .count = 1, .generated = true}};
  EXPECT_DOUBLE_EQ(pass_seconds(kCosts, schedule), 0.024 + 110e-6);
  schedule.chunks.push_back({.begin = 64, .count = 32});
  schedule.chunks.push_back({.begin = 0, .count = 3});
  const double keys = sum_of_keys(64, 32) + sum_of_keys(0, 3);
  EXPECT_DOUBLE_EQ(pass_seconds(kCosts, schedule),
                   0.024 + 110e-6 + 0.01 + 0.003 * 35 + 2e-6 * keys);
}

TEST(PassCosts, of_any_number_of_generated_tokens_are_on_the_line_through_the_nearest_two) {
  const std::vector<PassCosts::Generation> expected = {{0, 0.02},  {1, 0.022}, {2, 0.024},
                                                       {5, 0.036}, {8, 0.048}, {9, 0.052}};
  for (const auto& [tokens, seconds] : expected) {
    PassCosts costs = kCosts;
    costs.generated_key = 0;
    Schedule schedule;
    schedule.chunks.assign(tokens, {.begin = 9, .count = 1, .generated = true});
    EXPECT_NEAR(pass_seconds(costs, schedule), seconds, 1e-9) << tokens;
  }
}

TEST(PassCosts, of_more_generated_tokens_than_measured_are_no_less_where_figures_are_noisy) {
  const PassCosts costs = {.generation = {{4, 0.020}, {8, 0.019}}};
  Schedule schedule;
  schedule.chunks.assign(64, {.begin = 9, .count = 1, .generated = true});
  EXPECT_DOUBLE_EQ(pass_seconds(costs, schedule), 0.019);
}

}  // namespace
}  // namespace lockstep
