// Which experts tokens go to, and in which order the rows are that experts compute.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/operations/route/route_step.h"
#include "engine/pass/pass.h"
#include "tests/engine/runtime/reference_choice.h"

namespace lockstep {
namespace {

// Memory by its own address, in an arena that begins at 0.
template <typename T>
ArenaOffset<T> own(T* begin) {
  return {Arena::kScratch, reinterpret_cast<uintptr_t>(begin)};
}

// A routing with memory of its own.
class Routed {
 public:
  // Routes tokens with these scores, [token][expert], of which the first `generated` are generated.
  Routed(const std::vector<float>& scores, size_t experts, size_t chosen, size_t generated = 0,
         size_t workers = 1, const Gating& gating = {}, const std::vector<float>& bias = {})
      : experts_(experts), chosen_(chosen), tokens_(scores.size() / experts) {
    for (auto* area : {&chosen_area_, &row_tokens_}) area->resize(tokens_ * chosen);
    for (auto* area : {&weights_, &row_weights_}) area->resize(tokens_ * chosen);
    row_begin_.resize(experts + 1);
    generated_end_.resize(experts);
    const RouteStep step = {.scores = own(scores.data()),
                            .score_stride = experts,
                            .routing = {.expert_count = experts,
                                        .chosen_count = chosen,
                                        .chosen = own(chosen_area_.data()),
                                        .weights = own(weights_.data()),
                                        .row_begin = own(row_begin_.data()),
                                        .row_tokens = own(row_tokens_.data())},
                            .gating = gating,
                            .bias = bias.empty() ? ArenaOffset<const float>() : own(bias.data())};
    Batch batch;
    batch.tokens.resize(tokens_);
    batch.generated_tokens = generated;
    const KvLayout kv;
    const DeviceAreas areas = NodeAreas{.partials = {},
                                        .generated_end = own(generated_end_.data()),
                                        .row_weights = own(row_weights_.data())};
    const ArenaAddresses addresses;
    const Peers peers;
    const PassLayout layout(tokens_, 0);
    Barrier barrier(workers, 0);
    std::vector<WorkerCounters> counters(workers);
    TaskCounter tasks;
    std::vector<std::jthread> threads;
    for (size_t worker = 0; worker < workers; ++worker) {
      threads.emplace_back([&, worker] {
        run(step,
            {.kv = kv,
             .device_areas = areas,
             .addresses = addresses,
             .peers = peers,
             .kernels = *all_kernel_tables().front(),
             .batch = batch,
             .layout = layout,
             .barrier = barrier,
             .counters = counters[worker],
             .worker = worker,
             .worker_count = workers},
            tasks);
      });
    }
  }

  std::vector<uint32_t> chosen(size_t token) const {
    const auto first = chosen_area_.begin() + static_cast<std::ptrdiff_t>(token * chosen_);
    return {first, first + static_cast<std::ptrdiff_t>(chosen_)};
  }
  float weight(size_t token, size_t place) const { return weights_[token * chosen_ + place]; }
  const std::vector<uint32_t>& row_begin() const { return row_begin_; }
  const std::vector<uint32_t>& generated_end() const { return generated_end_; }
  const std::vector<uint32_t>& row_tokens() const { return row_tokens_; }
  const std::vector<float>& row_weights() const { return row_weights_; }

  // Every choice has one row, with its weight, among its expert's rows, in the batch's order.
  void expect_rows_in_order(size_t generated) const {
    ASSERT_EQ(row_begin_.front(), 0U);
    ASSERT_EQ(row_begin_.back(), tokens_ * chosen_);
    for (uint32_t expert = 0; expert < experts_; ++expert) {
      uint32_t row = row_begin_[expert];
      for (uint32_t token = 0; token < tokens_; ++token) {
        if (token == generated) {
          EXPECT_EQ(generated_end_[expert], row) << "expert " << expert;
        }
        const auto own = chosen(token);
        const auto place = std::ranges::find(own, expert);
        if (place == own.end()) continue;
        ASSERT_LT(row, row_begin_[expert + 1]);
        EXPECT_EQ(row_tokens_[row], token);
        const float expected = weight(token, static_cast<size_t>(place - own.begin()));
        EXPECT_EQ(std::bit_cast<uint32_t>(row_weights_[row]), std::bit_cast<uint32_t>(expected));
        ++row;
      }
      EXPECT_EQ(row, row_begin_[expert + 1]);
    }
  }

 private:
  size_t experts_;
  size_t chosen_;
  size_t tokens_;
  std::vector<uint32_t> chosen_area_;
  std::vector<float> weights_;
  std::vector<uint32_t> row_begin_;
  std::vector<uint32_t> generated_end_;
  std::vector<uint32_t> row_tokens_;
  std::vector<float> row_weights_;
};

TEST(Route, takes_the_largest_scores_and_of_equal_ones_the_first) {
  const Routed routed({0.5F, 3, -1, 2, 3, -7}, 6, 3);
  EXPECT_EQ(routed.chosen(0), (std::vector<uint32_t>{1, 4, 3}));
  const double sum = 1 + 1 + std::exp(-1.0);
  EXPECT_FLOAT_EQ(routed.weight(0, 0), static_cast<float>(1 / sum));
  EXPECT_FLOAT_EQ(routed.weight(0, 1), static_cast<float>(1 / sum));
  EXPECT_FLOAT_EQ(routed.weight(0, 2), static_cast<float>(std::exp(-1.0) / sum));
}

TEST(Route, puts_an_experts_rows_together_in_the_batchs_order) {
  // Tokens 0 and 2 go to experts 1 and 2, token 1 to 0 and 2.
  const Routed routed({0, 2, 1, 2, 0, 1, 0, 1, 2}, 3, 2, /*generated=*/1);
  EXPECT_EQ(routed.row_begin(), (std::vector<uint32_t>{0, 1, 3, 6}));
  EXPECT_EQ(routed.row_tokens(), (std::vector<uint32_t>{1, 0, 2, 0, 1, 2}));
  EXPECT_EQ(routed.generated_end(), (std::vector<uint32_t>{0, 2, 4}));
}

TEST(Route, is_the_same_for_any_number_of_workers) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> value;
  for (const size_t tokens : {1U, 16U, 17U, 100U}) {
    for (const auto& [experts, chosen] :
         {std::pair<size_t, size_t>{1, 1}, {8, 2}, {60, 8}, {5, 5}}) {
      std::vector<float> scores(tokens * experts);
      for (float& score : scores) score = value(random);
      const size_t generated = tokens / 3;
      const Routed alone(scores, experts, chosen, generated);
      alone.expect_rows_in_order(generated);
      for (size_t token = 0; token < tokens; ++token) {
        const auto own = alone.chosen(token);
        const float* of_token = scores.data() + token * experts;
        float sum = 0;
        for (size_t place = 0; place < chosen; ++place) sum += alone.weight(token, place);
        EXPECT_NEAR(sum, 1, 1e-5);
        const auto least = std::ranges::min(own, {}, [&](uint32_t one) { return of_token[one]; });
        EXPECT_EQ(std::count_if(of_token, of_token + experts,
                                [&](float score) { return score >= of_token[least]; }),
                  static_cast<std::ptrdiff_t>(chosen));
      }
      for (const size_t workers : {2U, 5U}) {
        const Routed shared(scores, experts, chosen, generated, workers);
        EXPECT_EQ(shared.row_tokens(), alone.row_tokens());
        EXPECT_EQ(shared.row_begin(), alone.row_begin());
        EXPECT_EQ(shared.row_weights(), alone.row_weights());
        EXPECT_EQ(shared.generated_end(), alone.generated_end());
      }
    }
  }
}

std::vector<Gating> all_gatings(size_t experts, size_t chosen) {
  std::vector<Gating> all;
  for (unsigned function = 0; function < 4; ++function) {
    for (const bool is_normalized : {false, true}) {
      for (const size_t groups : {1U, 2U, 4U}) {
        for (const size_t open : {1U, 2U, 4U}) {
          if (experts % groups != 0 || open > groups || experts / groups * open < chosen) continue;
          all.push_back({.function = static_cast<GatingFunction>(function),
                         .is_normalized = is_normalized,
                         .scale = is_normalized ? 2.5F : 1.0F,
                         .group_count = groups,
                         .chosen_groups = open});
        }
      }
    }
  }
  return all;
}

// Scores of random size, so that some values are as good as 0 or 1, and some are equal.
TEST(Route, is_what_float64_computes_for_every_gating) {
  std::mt19937_64 random(6);
  std::normal_distribution<float> value;
  for (const auto& [experts, chosen] : {std::pair<size_t, size_t>{4, 1}, {8, 2}, {64, 8}, {8, 8}}) {
    for (const Gating& gating : all_gatings(experts, chosen)) {
      for (const bool has_bias : {false, true}) {
        for (const float size : {0.1F, 2.0F, 12.0F}) {
          constexpr size_t kTokens = 20;
          std::vector<float> scores(kTokens * experts);
          for (float& score : scores) score = size * value(random);
          for (size_t token = 0; token < kTokens; ++token) {
            scores[token * experts + experts / 2] = scores[token * experts];
          }
          std::vector<float> bias(has_bias ? experts : 0);
          for (float& each : bias) each = 0.3F * value(random);
          const Routed routed(scores, experts, chosen, 0, 2, gating, bias);
          routed.expect_rows_in_order(0);
          for (size_t token = 0; token < kTokens; ++token) {
            const auto first = scores.begin() + static_cast<std::ptrdiff_t>(token * experts);
            const auto expected = reference_choice(
                gating, {first, first + static_cast<std::ptrdiff_t>(experts)}, bias, chosen);
            for (size_t place = 0; place < chosen; ++place) {
              EXPECT_EQ(routed.chosen(token)[place], expected[place].expert);
              EXPECT_NEAR(routed.weight(token, place), expected[place].weight,
                          expected[place].weight * 1e-7);
            }
          }
        }
      }
    }
  }
}

TEST(Route, divides_by_no_less_than_a_least_sum_of_weights) {
  const Gating gating{.function = GatingFunction::kSigmoid, .is_normalized = true};
  const Routed routed({-40, -30, -20, -50}, 4, 2, 0, 1, gating);
  EXPECT_EQ(routed.chosen(0), (std::vector<uint32_t>{2, 1}));
  EXPECT_FLOAT_EQ(routed.weight(0, 0), static_cast<float>(std::exp(-20.0) * 0x1p14));
}

// The experts of the group with the two best of all together, not those of the very best one's.
TEST(Route, chooses_groups_by_their_two_best_experts) {
  const Gating gating{.function = GatingFunction::kSigmoid, .group_count = 2, .chosen_groups = 1};
  const std::vector<float> scores = {4, -5, -5, 1, 1, 0};
  EXPECT_EQ(Routed(scores, 6, 2, 0, 1, gating).chosen(0), (std::vector<uint32_t>{3, 4}));
  // A bias chooses, and does not weigh.
  const Routed routed(scores, 6, 2, 0, 1, gating, {0, 1, 0.5F, 0, 0, 0});
  EXPECT_EQ(routed.chosen(0), (std::vector<uint32_t>{1, 0}));
  EXPECT_FLOAT_EQ(routed.weight(0, 0), static_cast<float>(1 / (1 + std::exp(5.0))));
}

// Its results are no numbers, so its request ends; the token beside it must not feel it.
TEST(Route, gives_a_token_whose_scores_are_no_numbers_experts_as_well) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& broken :
       std::vector<std::vector<float>>{{kNan, kNan, kNan, kNan},
                                       {1, kNan, 2, 0},
                                       {kInfinity, 1, kInfinity, kInfinity},
                                       {-kInfinity, -kInfinity, -kInfinity, -kInfinity}}) {
    std::vector<float> scores = broken;
    scores.insert(scores.end(), {0, 5, 1, 4});
    for (const Gating& gating : all_gatings(4, 2)) {
      for (const std::vector<float>& bias : {std::vector<float>(), {0, 0, 0, 0}}) {
        const Routed routed(scores, 4, 2, 0, 1, gating, bias);
        routed.expect_rows_in_order(0);
        auto own = routed.chosen(0);
        std::ranges::sort(own);
        EXPECT_LT(own[0], own[1]);
        EXPECT_LT(own[1], 4U);
        EXPECT_TRUE(std::isfinite(routed.weight(1, 0)));
        if (gating.group_count == gating.chosen_groups) {
          EXPECT_EQ(routed.chosen(1), (std::vector<uint32_t>{1, 3}));
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
