#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "engine/sampling/exponential.h"
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
