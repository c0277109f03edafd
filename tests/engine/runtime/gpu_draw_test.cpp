// Tokens drawn on a GPU, whose kernels run on the host, are those that the host's sampler draws.
#include "engine/kernels/gpu_draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "engine/kernels/gpu_candidates.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling/weighted_draw.h"

namespace lockstep {
namespace {

// One row of logits for every request. The candidates' search leaves the greatest logits.
std::vector<GpuDrawn> draw(const std::vector<float>& logits, size_t columns,
                           const std::vector<GpuDrawRequest>& requests, unsigned grid_rows) {
  const auto row_count = static_cast<uint32_t>(requests.size());
  std::vector<uint32_t> words(row_count * gpu_candidate_words(columns));
  std::vector<float> maxima(row_count);
  std::vector<GpuCandidateRow> candidates(row_count);
  gpu_find_candidates(nullptr, {.row_count = &row_count,
                                .logits = logits.data(),
                                .stride = columns,
                                .columns = columns,
                                .words = words.data(),
                                .maxima = maxima.data(),
                                .rows = candidates.data(),
                                .grid_rows = grid_rows});
  std::vector<double> sums(row_count * gpu_draw_blocks(columns), -1.0);
  std::vector<GpuDrawn> drawn(row_count, {-5.0, -5, 0});
  gpu_draw_tokens(nullptr, {.row_count = &row_count,
                            .requests = requests.data(),
                            .logits = logits.data(),
                            .stride = columns,
                            .columns = columns,
                            .maxima = maxima.data(),
                            .sums = sums.data(),
                            .drawn = drawn.data(),
                            .grid_rows = grid_rows});
  return drawn;
}

GpuDrawRequest gpu_request(const LogitDrawRequest& request) {
  return {request.inverse_temperature, request.weight_min, request.uniform};
}

// Without a draw the likeliest token stays what is picked.
TEST(GpuDraw, takes_the_place_of_the_likeliest_token) {
  const size_t columns = 700;
  std::vector<float> logits(3 * columns);
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(0, 3);
  for (float& logit : logits) logit = normal(random);
  std::vector<float> maxima;
  for (size_t row = 0; row < 3; ++row) {
    maxima.push_back(
        *std::max_element(logits.begin() + row * columns, logits.begin() + (row + 1) * columns));
  }
  const std::vector<GpuDrawRequest> requests = {{}, {.inverse_temperature = 1, .uniform = 0.7}, {}};
  std::vector<uint32_t> picks = {11, 12, 13};
  std::vector<double> sums(3 * gpu_draw_blocks(columns));
  std::vector<GpuDrawn> drawn(6, {-5.0, -5, -5});
  const std::vector<uint32_t> numbers = {3, 3 * sizeof(GpuDrawn)};
  gpu_draw_tokens(nullptr, {.row_count = numbers.data(),
                            .requests = requests.data(),
                            .logits = logits.data(),
                            .stride = columns,
                            .columns = columns,
                            .maxima = maxima.data(),
                            .sums = sums.data(),
                            .picks = picks.data(),
                            .drawn = drawn.data(),
                            .result_offset = numbers.data() + 1,
                            .grid_rows = 2});
  for (size_t row = 0; row < 3; ++row) EXPECT_EQ(drawn[row].pick, -5);
  EXPECT_EQ(drawn[3].pick, 11);
  EXPECT_EQ(drawn[3].token, -5);
  EXPECT_EQ(drawn[5].pick, 13);
  EXPECT_GE(drawn[4].token, 0);
  EXPECT_EQ(drawn[4].pick, drawn[4].token);
  EXPECT_EQ(picks, (std::vector<uint32_t>{11, static_cast<uint32_t>(drawn[4].token), 13}));
}

TEST(GpuDraw, is_the_samplers_for_every_temperature_and_size) {
  std::mt19937_64 random(11);
  for (const size_t columns : {size_t{1}, size_t{255}, size_t{300}, size_t{9000}, size_t{70'001}}) {
    SCOPED_TRACE(columns);
    std::normal_distribution<float> normal(0, 3);
    std::vector<GpuDrawRequest> requests;
    std::vector<TokenId> expected;
    std::vector<float> logits;
    for (const float temperature : {0.3F, 1.0F, 4.0F}) {
      std::vector<float> row(columns);
      for (float& logit : row) logit = normal(random);
      row[0] = -0.0F;
      logits.insert(logits.end(), row.begin(), row.end());
      const float min_p = temperature > 2 ? 0.1F : 0;
      Sampler sampler({.temperature = temperature, .min_p = min_p, .seed = random()}, {}, columns);
      requests.push_back(gpu_request(sampler.draw_request()));
      expected.push_back(sampler.sample(row, {}));
    }
    for (const unsigned grid_rows : {1U, 4U}) {
      const auto drawn = draw(logits, columns, requests, grid_rows);
      for (size_t row = 0; row < requests.size(); ++row) EXPECT_EQ(drawn[row].token, expected[row]);
    }
  }
}

// Draws end at both ends of the weights, at the borders of blocks, and behind all weights, where
// rounding may put them.
TEST(GpuDraw, is_the_hosts_for_every_target) {
  const size_t columns = 1000;
  std::vector<float> row(columns, -1000.0F);  // of no weight but for a few
  for (const size_t token : {3U, 255U, 256U, 511U, 700U})
    row[token] = 1.0F / static_cast<float>(1 + token);
  FewWeights weights;
  for (size_t token = 0; token < columns; ++token) {
    weights.tokens().push_back({static_cast<TokenId>(token), row[token]});
  }
  weights.arrange();
  const LikelihoodCut all = {-std::numeric_limits<float>::infinity(),
                             std::numeric_limits<TokenId>::max()};
  const double sum = weights.weigh(all, *std::ranges::max_element(row), 1.0F, 0.0F);
  std::vector<GpuDrawRequest> requests;
  std::vector<float> logits;
  for (const double uniform :
       {0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1 - 0x1p-53, 1.0}) {
    requests.push_back({1.0F, 0.0F, uniform});
    logits.insert(logits.end(), row.begin(), row.end());
  }
  const auto drawn = draw(logits, columns, requests, 2);
  for (size_t index = 0; index < requests.size(); ++index) {
    EXPECT_EQ(drawn[index].sum, sum);
    EXPECT_EQ(drawn[index].token, weights.draw(requests[index].uniform * sum, columns));
  }
}

TEST(GpuDraw, rows_that_want_none_are_left_alone) {
  const std::vector<float> logits(600, 1.0F);
  const auto drawn = draw(logits, 300, {{}, {1.0F, 0.0F, 0.5}}, 1);
  EXPECT_EQ(drawn[0].token, -5);
  EXPECT_EQ(drawn[0].sum, -5.0);
  EXPECT_EQ(drawn[1].sum, 300.0);
}

}  // namespace
}  // namespace lockstep
