// Tests what passes are taken to cost by what was measured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "engine/scheduler/scheduler.h"
#include "engine/simulation/simulation.h"

namespace lockstep {
namespace {

constexpr PassCosts kCosts = {.pass = 0.02,
                              .prompts = 0.01,
                              .prompt_token = 0.003,
                              .generated_token = 0.002,
                              .generated_key = 1e-6};
constexpr size_t kBatchTokens = 128;

// A machine with exactly these costs measures this.
BenchRow prompt_row(size_t tokens, size_t depth) {
  const auto passes = static_cast<double>((tokens + kBatchTokens - 1) / kBatchTokens);
  const double seconds =
      passes * (kCosts.pass + kCosts.prompts) + kCosts.prompt_token * prompt_work(depth, tokens);
  return {.prompt_tokens = tokens,
          .depth_tokens = depth,
          .tokens_per_second = static_cast<double>(tokens) / seconds};
}

BenchRow generation_row(size_t sequences, size_t depth) {
  constexpr size_t kTokens = 16;
  double seconds = 0;
  for (size_t token = 0; token < kTokens; ++token) {
    const auto keys = static_cast<double>(depth + token + 1);
    seconds += kCosts.pass + static_cast<double>(sequences) *
                                 (kCosts.generated_token + kCosts.generated_key * keys);
  }
  return {.generated_tokens = kTokens,
          .depth_tokens = depth,
          .sequences = sequences,
          .tokens_per_second = static_cast<double>(kTokens * sequences) / seconds};
}

std::vector<BenchRow> all_rows() {
  return {prompt_row(64, 0),    prompt_row(500, 0),   prompt_row(500, 2048),
          generation_row(1, 0), generation_row(8, 0), generation_row(8, 2048)};
}

TEST(PassCosts, are_found_in_what_was_measured) {
  const auto rows = all_rows();
  const auto costs = fit_pass_costs(rows, kBatchTokens);
  ASSERT_TRUE(costs) << costs.error().message;
  EXPECT_NEAR(costs->pass, kCosts.pass, 0.01 * kCosts.pass);
  EXPECT_NEAR(costs->prompts, kCosts.prompts, 0.02 * kCosts.prompts);
  EXPECT_NEAR(costs->prompt_token, kCosts.prompt_token, 0.01 * kCosts.prompt_token);
  EXPECT_NEAR(costs->generated_token, kCosts.generated_token, 0.01 * kCosts.generated_token);
  EXPECT_NEAR(costs->generated_key, kCosts.generated_key, 0.01 * kCosts.generated_key);
  EXPECT_LT(worst_deviation(*costs, rows, kBatchTokens), 0.001);
}

TEST(PassCosts, deviate_by_as_much_as_the_worst_row) {
  auto rows = all_rows();
  rows.back().tokens_per_second *= 2;
  EXPECT_NEAR(worst_deviation(kCosts, rows, kBatchTokens), 1, 0.001);
}

TEST(PassCosts, without_depths_leave_keys_out) {
  const std::vector<BenchRow> rows = {prompt_row(64, 0), prompt_row(500, 0), generation_row(1, 0),
                                      generation_row(8, 0)};
  const auto costs = fit_pass_costs(rows, kBatchTokens);
  ASSERT_TRUE(costs);
  EXPECT_EQ(costs->generated_key, 0);
  EXPECT_NEAR(costs->pass, kCosts.pass, 0.01 * kCosts.pass);
}

TEST(PassCosts, cannot_be_told_from_one_length_or_one_number_of_sequences) {
  const std::vector<BenchRow> one_length = {prompt_row(64, 0), prompt_row(64, 2048),
                                            generation_row(1, 0), generation_row(8, 0)};
  const std::vector<BenchRow> one_number = {prompt_row(64, 0), prompt_row(500, 0),
                                            generation_row(8, 0), generation_row(8, 2048)};
  for (const auto& rows : {one_length, one_number}) {
    const auto costs = fit_pass_costs(rows, kBatchTokens);
    ASSERT_FALSE(costs);
    EXPECT_THAT(costs.error().message, testing::HasSubstr("--sequences 1,8"));
  }
}

TEST(PassCosts, of_a_pass_are_those_of_its_chunks) {
  Schedule schedule;
  schedule.chunks = {{.begin = 99, .count = 1, .generated = true},
                     {.begin = 9, .count = 1, .generated = true}};
  EXPECT_DOUBLE_EQ(pass_seconds(kCosts, schedule), 0.02 + 2 * 0.002 + 110e-6);
  schedule.chunks.push_back({.begin = 64, .count = 32});
  schedule.chunks.push_back({.begin = 0, .count = 3});
  EXPECT_DOUBLE_EQ(
      pass_seconds(kCosts, schedule),
      0.02 + 2 * 0.002 + 110e-6 + 0.01 + 0.003 * (prompt_work(64, 32) + prompt_work(0, 3)));
}

}  // namespace
}  // namespace lockstep
