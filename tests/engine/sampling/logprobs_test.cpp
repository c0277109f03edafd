#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "engine/sampling/exponential.h"
#include "engine/sampling/row_loops.h"
#include "engine/sampling/sampler.h"

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Logprobs, are_the_log_softmax_of_the_raw_logits) {
  const uint64_t seed = 41;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (const size_t count : {1U, 7U, 8U, 1000U, 128'256U}) {
    std::normal_distribution<float> normal(-5, 4);
    std::vector<float> logits(count);
    for (float& logit : logits) logit = std::round(normal(random) * 64) / 64;  // with equal ones
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    const auto expected = [&](size_t token) {
      return static_cast<double>(logits[token]) - std::log(sum);
    };
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    });
    for (const size_t wanted : {size_t{0}, size_t{1}, size_t{20}, count, count + 5}) {
      const size_t token = random() % count;
      const LogprobResult result = compute_logprobs(logits, static_cast<TokenId>(token), wanted);
      EXPECT_NEAR(static_cast<double>(result.logprob), expected(token), 2e-6);
      ASSERT_EQ(result.top.size(), std::min(wanted, count));
      for (size_t index = 0; index < result.top.size(); ++index) {
        ASSERT_EQ(result.top[index].token, static_cast<TokenId>(order[index])) << index;
        ASSERT_NEAR(static_cast<double>(result.top[index].logprob), expected(order[index]), 2e-6);
      }
    }
  }
}

TEST(Logprobs, odd_logits_give_numbers_or_minus_infinity) {
  const float not_a_number = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> some = {1.0F, -kInfinity, not_a_number, 1.0F};
  const LogprobResult result = compute_logprobs(some, 1, 4);
  EXPECT_EQ(result.logprob, -kInfinity);
  EXPECT_NEAR(result.top[0].logprob, std::log(0.5F), 1e-6F);
  EXPECT_EQ(result.top[0].token, 0);
  EXPECT_EQ(result.top[3].logprob, -kInfinity);
  for (const float value : {-kInfinity, kInfinity, not_a_number}) {
    const std::vector<float> all(10, value);
    EXPECT_EQ(compute_logprobs(all, 3, 2).logprob, -kInfinity);
    EXPECT_EQ(compute_logprobs(all, 3, 2).top.size(), 2U);
  }
}

TEST(RowLoops, have_the_bits_of_narrow_vectors) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 9);
  const RowLoops& narrow = narrow_row_loops();
  for (const size_t size : {1U, 7U, 8U, 100U, 256U, 1025U}) {
    std::vector<float> logits(size);
    for (float& logit : logits) logit = normal(random);
    logits[size / 2] = logits[size / 3];
    const float most = narrow.greatest(logits.data(), size);
    EXPECT_EQ(row_loops().greatest(logits.data(), size), most);
    EXPECT_EQ(most, *std::ranges::max_element(logits));
    for (const auto& cut : {BlockCut(), BlockCut{.logit = logits[size / 2],
                                        .last_equal = static_cast<int32_t>(size / 2) - 1,
                                        .weight_min = 1e-5F}}) {
      std::vector<float> expected(size);
      std::vector<float> weights(size);
      const double sum = narrow.weigh(logits.data(), size, most, 0.7F, cut, expected.data());
      EXPECT_EQ(row_loops().weigh(logits.data(), size, most, 0.7F, cut, weights.data()), sum);
      EXPECT_EQ(weights, expected);
      EXPECT_EQ(sum_in_lanes(expected), sum);
    }
    for (const float odd : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      EXPECT_TRUE(row_loops().all_finite(logits.data(), size));
      EXPECT_TRUE(row_loops().all_usable(logits.data(), size));
      const float before = std::exchange(logits[size - 1], odd);
      EXPECT_FALSE(row_loops().all_finite(logits.data(), size));
      EXPECT_EQ(row_loops().all_usable(logits.data(), size), odd == -kInfinity);
      logits[size - 1] = before;
    }
  }
}

TEST(ExpNonpositive, keeps_its_bound) {
  EXPECT_EQ(exp_nonpositive(0.0F), 1.0F);
  EXPECT_EQ(exp_nonpositive(-0.0F), 1.0F);
  EXPECT_EQ(exp_nonpositive(-88.0F), 0.0F);
  EXPECT_EQ(exp_nonpositive(-kInfinity), 0.0F);
  for (float x = 0; x >= -87.0F; x -= 0.00037F) {
    const double exact = std::exp(static_cast<double>(x));
    ASSERT_NEAR(static_cast<double>(exp_nonpositive(x)) / exact, 1.0, 3e-7) << x;
  }
}

}  // namespace
}  // namespace lockstep
