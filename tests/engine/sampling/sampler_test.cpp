#include "engine/sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(std::mt19937_64& random, size_t count) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// The definition, in double and with a full sort: the probability of every token.
std::vector<double> reference_probabilities(const SamplingParameters& parameters,
                                            std::span<const float> logits,
                                            const std::vector<TokenId>& prompt,
                                            const std::vector<TokenId>& generated,
                                            const std::vector<TokenId>& banned) {
  const size_t count = logits.size();
  std::vector<double> adjusted(logits.begin(), logits.end());
  for (const auto& [token, bias] : parameters.logit_bias) {
    adjusted[static_cast<size_t>(token)] += static_cast<double>(bias);
  }
  std::set<TokenId> seen(prompt.begin(), prompt.end());
  seen.insert(generated.begin(), generated.end());
  for (const TokenId token : seen) {
    double& logit = adjusted[static_cast<size_t>(token)];
    const auto penalty = static_cast<double>(parameters.repetition_penalty);
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  std::map<TokenId, int> counts;
  for (const TokenId token : generated) ++counts[token];
  for (const auto& [token, times] : counts) {  // mu[j] - c[j] * frequency - (c[j] > 0) * presence
    adjusted[static_cast<size_t>(token)] -=
        times * static_cast<double>(parameters.frequency_penalty) +
        static_cast<double>(parameters.presence_penalty);
  }
  for (const TokenId token : banned) adjusted[static_cast<size_t>(token)] = -HUGE_VAL;

  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return adjusted[a] > adjusted[b] || (adjusted[a] == adjusted[b] && a < b);
  });
  std::vector<double> probabilities(count, 0.0);
  if (parameters.temperature == 0) {
    probabilities[order[0]] = 1;
    return probabilities;
  }
  const auto weight = [&](size_t token) {
    return std::exp((adjusted[token] - adjusted[order[0]]) /
                    static_cast<double>(parameters.temperature));
  };
  if (parameters.top_k > 0 && parameters.top_k < count) order.resize(parameters.top_k);
  double sum = 0;
  for (const size_t token : order) sum += weight(token);
  double kept = 0;
  size_t size = 0;
  while (size < order.size() && (size == 0 || kept < static_cast<double>(parameters.top_p) * sum)) {
    kept += weight(order[size++]);
  }
  if (parameters.top_p < 1) order.resize(size);
  double total = 0;
  for (const size_t token : order) {
    if (weight(token) < static_cast<double>(parameters.min_p)) continue;
    probabilities[token] = weight(token);
    total += weight(token);
  }
  for (double& probability : probabilities) probability /= total;
  return probabilities;
}

// Draws often, under a seed each, and compares how often each token came with its probability.
// `seed` is fixed, so the outcome is too; a right sampler passes for all but one seed in a million.
void expect_distribution(const SamplingParameters& base, const std::vector<float>& logits,
                         const std::vector<double>& expected, const std::string& what) {
  constexpr int kDraws = 20'000;
  std::vector<int> counts(logits.size(), 0);
  for (int draw = 0; draw < kDraws; ++draw) {
    SamplingParameters parameters = base;
    parameters.seed = static_cast<uint64_t>(draw);
    ++counts[static_cast<size_t>(Sampler(parameters, {}, logits.size()).sample(logits, {}))];
  }
  double chi_square = 0;
  double freedom = -1;
  double rare_expected = 0;
  double rare_counted = 0;
  for (size_t token = 0; token < logits.size(); ++token) {
    const double mean = expected[token] * kDraws;
    if (expected[token] == 0) {
      EXPECT_EQ(counts[token], 0) << what << ": token " << token << " was cut";
    } else if (mean < 10) {
      rare_expected += mean;
      rare_counted += counts[token];
    } else {
      chi_square += (counts[token] - mean) * (counts[token] - mean) / mean;
      freedom += 1;
    }
  }
  if (rare_expected > 0) {
    chi_square += (rare_counted - rare_expected) * (rare_counted - rare_expected) /
                  std::max(rare_expected, 1.0);
    freedom += 1;
  }
  // The mean of chi-square is its degrees of freedom, its variance twice that.
  EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom) + 10) << what;
}

TEST(Sampler, draws_with_the_probabilities_of_the_definition) {
  std::mt19937_64 random(17);
  const std::vector<float> logits = random_logits(random, 300);
  const std::vector<std::pair<std::string, SamplingParameters>> cases = {
      {"plain", {}},
      {"cold", {.temperature = 0.3F}},
      {"hot", {.temperature = 5.0F}},
      {"top_k", {.top_k = 20}},
      {"top_p", {.top_p = 0.8F}},
      {"hot top_p", {.temperature = 10.0F, .top_p = 0.6F}},
      {"min_p", {.min_p = 0.05F}},
      {"all", {.temperature = 1.5F, .top_k = 50, .top_p = 0.9F, .min_p = 0.02F}},
      {"bias", {.logit_bias = {{7, 8.0F}, {11, -100.0F}, {12, 5.0F}}}},
  };
  for (const auto& [what, parameters] : cases) {
    expect_distribution(parameters, logits, reference_probabilities(parameters, logits, {}, {}, {}),
                        what);
  }
}

// With a single draw per state every candidate that comes must be one of the definition's.
TEST(Sampler, picks_only_what_the_definition_allows_over_a_whole_generation) {
  const uint64_t seed = 31;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const auto any = [&](std::initializer_list<float> values) {
    return *(values.begin() + random() % values.size());
  };
  for (int round = 0; round < 300; ++round) {
    const size_t count = 1 + random() % 700;
    const auto token = [&] { return static_cast<TokenId>(random() % count); };
    SamplingParameters parameters;
    parameters.temperature = any({0.0F, 0.2F, 1.0F, 3.0F});
    parameters.top_k = static_cast<uint32_t>(any({0, 1, 5, 40, 1000}));
    parameters.top_p = any({1.0F, 0.99F, 0.5F, 0.001F});
    parameters.min_p = any({0.0F, 0.1F, 1.0F});
    parameters.presence_penalty = any({0.0F, 1.5F, -1.0F});
    parameters.frequency_penalty = any({0.0F, 0.7F, -0.5F});
    parameters.repetition_penalty = any({1.0F, 1.3F, 0.8F});
    parameters.seed = random();
    for (size_t biases = random() % 3; biases > 0; --biases) {
      parameters.logit_bias.emplace_back(token(), any({-100, -1, 2, 100}));
    }
    std::vector<TokenId> prompt;
    for (size_t size = random() % 20; size > 0; --size) prompt.push_back(token());
    std::vector<TokenId> banned;
    for (size_t size = random() % 3; size > 0 && count > 10; --size) banned.push_back(token());

    Sampler sampler(parameters, prompt, count);
    std::vector<TokenId> generated;
    for (int step = 0; step < 12; ++step) {
      const std::vector<float> logits = random_logits(random, count);
      const auto expected = reference_probabilities(parameters, logits, prompt, generated, banned);
      const TokenId picked = sampler.sample(logits, banned);
      ASSERT_GE(picked, 0) << "round " << round << ", step " << step;
      ASSERT_GT(expected[static_cast<size_t>(picked)], 0)
          << "round " << round << ", step " << step << ", token " << picked;
      generated.push_back(picked);
    }
  }
}

TEST(Sampler, greedy_takes_the_lowest_of_equal_tokens) {
  Sampler sampler({.temperature = 0}, {}, 6);
  const std::vector<float> logits = {1, 5, 2, 5, 5, -kInfinity};
  EXPECT_EQ(sampler.sample(logits, {}), 1);
  const std::vector<TokenId> banned = {1, 3, -7, 600};
  EXPECT_EQ(sampler.sample(logits, banned), 4);
}

TEST(Sampler, ties_at_a_cut_go_to_the_lower_ids) {
  const std::vector<float> logits(1000, 0.5F);
  std::set<TokenId> picked_k;
  std::set<TokenId> picked_p;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    picked_k.insert(Sampler({.top_k = 3, .seed = seed}, {}, 1000).sample(logits, {}));
    picked_p.insert(Sampler({.top_p = 0.004F, .seed = seed}, {}, 1000).sample(logits, {}));
  }
  EXPECT_THAT(picked_k, testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(picked_p, testing::IsSubsetOf({0, 1, 2, 3, 4}));
  EXPECT_GE(picked_p.size(), 4U);
}

TEST(Sampler, limits_that_cut_nothing_change_no_draw) {
  std::mt19937_64 random(23);
  const size_t count = 5000;
  const std::vector<float> logits = random_logits(random, count);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const TokenId plain = Sampler({.seed = seed}, {}, count).sample(logits, {});
    const auto same = [&](SamplingParameters parameters) {
      parameters.seed = seed;
      EXPECT_EQ(Sampler(parameters, {}, count).sample(logits, {}), plain) << "seed " << seed;
    };
    same({.top_k = 5000});
    same({.top_k = 4'000'000'000});
    same({.top_p = 1.0F});
    same({.min_p = 1e-30F});
    same({.repetition_penalty = 1.0F});
    same({.logit_bias = {{-1, 50.0F}, {5000, 50.0F}}});
  }
}

TEST(Sampler, a_draw_depends_on_the_seed_and_the_number_of_the_token_alone) {
  std::mt19937_64 random(29);
  const std::vector<float> logits = random_logits(random, 2000);
  const auto generate = [&](uint64_t seed, bool disturbed) {
    Sampler sampler({.temperature = 4.0F, .seed = seed}, {}, logits.size());
    std::vector<TokenId> tokens;
    for (int step = 0; step < 50; ++step) {
      // Another sequence's sampler beside it must not matter.
      if (disturbed) Sampler({.seed = seed}, {}, logits.size()).sample(logits, {});
      tokens.push_back(sampler.sample(logits, {}));
    }
    return tokens;
  };
  EXPECT_EQ(generate(1, false), generate(1, true));
  EXPECT_NE(generate(1, false), generate(2, false));
  const auto tokens = generate(3, false);
  EXPECT_GT(std::set<TokenId>(tokens.begin(), tokens.end()).size(), 20U);
}

TEST(Sampler, the_raw_logits_stay_as_they_are) {
  std::mt19937_64 random(37);
  const std::vector<float> logits = random_logits(random, 100);
  const std::vector<float> before = logits;
  Sampler sampler({.repetition_penalty = 2.0F, .logit_bias = {{3, 9.0F}}}, {}, 100);
  sampler.sample(logits, {});
  EXPECT_EQ(logits, before);
}

TEST(Sampler, logits_that_are_no_numbers_pick_nothing) {
  const float not_a_number = std::numeric_limits<float>::quiet_NaN();
  for (const float temperature : {0.0F, 1.0F}) {
    for (const float wrong : {not_a_number, kInfinity}) {
      std::vector<float> logits(500, 1.0F);
      logits[499] = wrong;
      const std::vector<TokenId> banned = {499};
      EXPECT_EQ(Sampler({.temperature = temperature}, {}, 500).sample(logits, {}), -1);
      EXPECT_EQ(Sampler({.temperature = temperature}, {}, 500).sample(logits, banned), -1);
    }
    const std::vector<float> nothing(500, -kInfinity);
    EXPECT_EQ(Sampler({.temperature = temperature, .top_k = 3, .top_p = 0.5F}, {}, 500)
                  .sample(nothing, {}),
              -1);
    const std::vector<float> one = {2.0F};
    const std::vector<TokenId> all = {0};
    EXPECT_EQ(Sampler({.temperature = temperature}, {}, 1).sample(one, all), -1);
    EXPECT_EQ(Sampler({.temperature = temperature}, {}, 1).sample(one, {}), 0);
  }
}

TEST(Sampler, extreme_parameters_still_pick_a_token) {
  std::vector<float> logits(1000, -3e38F);
  logits[500] = 3e38F;
  for (const float temperature : {1e-45F, 1e-30F, 1e-3F, 1e30F, kInfinity}) {
    for (const float top_p : {1e-30F, 0.5F, 0.9999999F}) {
      const SamplingParameters parameters = {
          .temperature = temperature, .top_p = top_p, .min_p = 0.5F};
      const TokenId picked = Sampler(parameters, {}, 1000).sample(logits, {});
      EXPECT_GE(picked, 0) << temperature << " " << top_p;
      if (temperature < 1) {
        EXPECT_EQ(picked, 500) << temperature << " " << top_p;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
