// A pick from candidates is the very one that the whole row gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/sampling/exponential.h"
#include "engine/sampling/logprobs.h"
#include "engine/sampling/sampler.h"

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Candidates as a GPU gives them; `masked` tokens are not allowed by a grammar.
struct Candidates {
  Candidates(const std::vector<float>& logits, size_t count, const std::vector<TokenId>& masked) {
    std::vector<TokenLogprob> found;
    select_likeliest(logits, count, found);
    std::ranges::sort(found, is_likelier);
    for (const TokenLogprob& token : found) {
      tokens.push_back(token.token);
      const bool allowed = std::ranges::find(masked, token.token) == masked.end();
      seen.push_back(allowed ? token.logprob : -kInfinity);
    }
    all = {tokens, seen, found.back().token, found.back().logprob};
  }

  std::vector<TokenId> tokens;
  std::vector<float> seen;
  LogitCandidates all;
};

struct Case {
  size_t vocabulary = 0;
  size_t candidates = 0;
  float spread = 0;
  int kind = 0;  // of rows
  bool draws = false;
  SamplingParameters parameters;
  std::vector<TokenId> prompt;
  std::vector<TokenId> banned;
  std::vector<TokenId> masked;
};

std::vector<float> random_row(const Case& wanted, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, wanted.spread);
  std::vector<float> logits(wanted.vocabulary);
  for (float& logit : logits) logit = normal(random);
  // As they are; with some that stand out; with many equal ones; all equal.
  if (wanted.kind == 1) {
    for (int token = 0; token < 5; ++token) logits[random() % logits.size()] += 20;
  }
  if (wanted.kind == 2) {
    for (float& logit : logits) logit = std::round(logit);
  }
  if (wanted.kind == 3) std::ranges::fill(logits, -0.25F);
  return logits;
}

struct Count {
  size_t picks = 0;
  size_t plain = 0;  // that a GPU makes itself
  size_t sure = 0;   // from candidates alone
};

// As a GPU draws from a row.
std::optional<LogitDraw> draw_from(const std::vector<float>& logits,
                                   const LogitDrawRequest& request) {
  if (request.inverse_temperature == 0.0F) return std::nullopt;
  FewWeights weights;
  for (size_t token = 0; token < logits.size(); ++token) {
    weights.tokens().push_back({static_cast<TokenId>(token), logits[token]});
  }
  const LikelihoodCut all = {-kInfinity, std::numeric_limits<TokenId>::max()};
  const double sum = weights.weigh(all, *std::ranges::max_element(logits),
                                   request.inverse_temperature, request.weight_min);
  return LogitDraw{request, sum, weights.draw(request.uniform * sum, logits.size())};
}

// Two samplers of one sequence, step by step: the one always sees whole rows.
Count expect_same_picks(const Case& wanted, std::mt19937_64& random, int steps) {
  Count count;
  Sampler whole(wanted.parameters, wanted.prompt, wanted.vocabulary);
  Sampler sparing(wanted.parameters, wanted.prompt, wanted.vocabulary);
  for (int step = 0; step < steps; ++step) {
    const std::vector<float> logits = random_row(wanted, random);
    std::vector<float> seen = logits;
    for (const TokenId token : wanted.masked) seen[static_cast<size_t>(token)] = -kInfinity;
    const TokenId expected = whole.sample(seen, wanted.banned);
    Candidates candidates(logits, wanted.candidates, wanted.masked);
    if (wanted.draws && wanted.masked.empty()) {
      candidates.all.draw = draw_from(logits, sparing.draw_request());
    }
    const bool sees_all = wanted.masked.empty() && wanted.banned.empty();
    const bool is_drawn = wanted.draws || wanted.parameters.temperature == 0;
    const bool is_plain = sparing.picks_plainly() && sees_all && is_drawn;
    const auto sure = sparing.sample(candidates.all, wanted.banned);
    if (is_plain) {
      ++count.plain;
      const TokenId likeliest = candidates.all.tokens[0];
      EXPECT_EQ(sure, candidates.all.draw ? candidates.all.draw->token : likeliest);
    }
    const TokenId picked = sure ? *sure : sparing.sample(seen, wanted.banned);
    ++count.picks;
    count.sure += sure ? 1 : 0;
    EXPECT_EQ(picked, expected) << "step " << step;
    if (picked != expected) break;
  }
  return count;
}

Case random_case(std::mt19937_64& random) {
  const auto any = [&](std::initializer_list<float> values) {
    return *(values.begin() + random() % values.size());
  };
  Case made;
  made.vocabulary =
      std::initializer_list<size_t>{30, 255, 256, 257, 700, 3000}.begin()[random() % 6];
  made.candidates = std::min<size_t>(made.vocabulary, random() % 2 == 0 ? 32 : 256);
  made.spread = any({0.5F, 3, 30});
  made.kind = static_cast<int>(random() % 4);
  made.draws = random() % 2 == 0;
  const auto token = [&] { return static_cast<TokenId>(random() % made.vocabulary); };
  SamplingParameters& parameters = made.parameters;
  parameters.temperature = any({0.0F, 0.0F, 0.05F, 0.7F, 1.0F, 3.0F});
  parameters.top_k = static_cast<uint32_t>(any({0, 1, 5, 20, 40, 300}));
  parameters.top_p = any({1.0F, 1.0F, 0.95F, 0.5F, 0.001F});
  parameters.min_p = any({0.0F, 0.0F, 0.05F, 1.0F});
  if (random() % 2 == 0) {
    parameters.presence_penalty = any({0.0F, 1.5F, -1.0F});
    parameters.frequency_penalty = any({0.0F, 0.7F, -0.5F});
    parameters.repetition_penalty = any({1.0F, 1.3F, 0.8F});
  }
  parameters.seed = random();
  for (size_t biases = random() % 4; biases > 0; --biases) {
    parameters.logit_bias.emplace_back(token(), any({-100, -1, 2, 100}));
    if (random() % 4 == 0) parameters.logit_bias.push_back(parameters.logit_bias.back());
  }
  for (size_t size = random() % 40; size > 0; --size) made.prompt.push_back(token());
  for (size_t size = random() % 3; size > 0; --size) made.banned.push_back(token());
  const size_t most_masked = random() % 3 == 0 ? made.vocabulary - 1 : 0;
  for (size_t size = 0; size < most_masked; ++size) made.masked.push_back(token());
  return made;
}

TEST(CandidateSampling, picks_the_token_of_the_whole_row_whatever_the_parameters) {
  const uint64_t seed = 20'401;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  Count count;
  for (int round = 0; round < 2000 && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const Count own = expect_same_picks(random_case(random), random, 6);
    count.picks += own.picks;
    count.sure += own.sure;
    count.plain += own.plain;
  }
  // Neither way is left untried.
  EXPECT_GT(count.sure, count.picks / 4);
  EXPECT_LT(count.sure, count.picks * 3 / 4);
  EXPECT_GT(count.plain, count.picks / 200);
}

// The parameters of most requests need no whole row.
TEST(CandidateSampling, common_parameters_are_served_by_candidates_alone) {
  struct Common {
    std::string what;
    SamplingParameters parameters;
    int kind = 0;
    double least = 1;  // of the picks
  };
  const std::vector<Common> cases = {
      {"greedy", {.temperature = 0}},
      {"greedy among equals", {.temperature = 0}, 3},
      {"greedy with penalties",
       {.temperature = 0,
        .presence_penalty = 0.5F,
        .frequency_penalty = 0.5F,
        .repetition_penalty = 1.1F}},
      {"greedy with a ban", {.temperature = 0, .logit_bias = {{3, -100.0F}}}},
      {"top_k", {.temperature = 0.7F, .top_k = 40, .top_p = 0.95F}},
      {"top_k among equals", {.top_k = 40}, 3},
      {"min_p", {.min_p = 0.05F}, 1},
      {"everything", {.temperature = 1}},
      {"everything that is not unlikely", {.temperature = 3, .min_p = 0.001F}},
      {"top_p of a sure model", {.temperature = 0.7F, .top_p = 0.95F}, 1},
      {"a bias that makes a token the likeliest",
       {.temperature = 0, .logit_bias = {{3, 100.0F}}},
       0,
       0.05},
  };
  for (const Common& common : cases) {
    SCOPED_TRACE(common.what);
    std::mt19937_64 random(7);
    Case wanted;
    wanted.vocabulary = 4000;
    wanted.candidates = 256;
    wanted.spread = 3;
    wanted.kind = common.kind;
    wanted.draws = true;
    wanted.parameters = common.parameters;
    for (TokenId token = 0; token < 40; ++token) wanted.prompt.push_back(token * 90);
    const Count count = expect_same_picks(wanted, random, 200);
    EXPECT_GE(static_cast<double>(count.sure), common.least * static_cast<double>(count.picks));
  }
}

TEST(CandidateSampling, a_pick_that_is_not_sure_leaves_no_trace) {
  std::vector<float> logits(1000);
  for (size_t token = 0; token < logits.size(); ++token) {
    logits[token] = -0.001F * static_cast<float>(token);
  }
  const Candidates candidates(logits, 32, {});
  const SamplingParameters parameters = {.frequency_penalty = 0.1F, .seed = 5};
  Sampler asked(parameters, {}, logits.size());
  Sampler not_asked(parameters, {}, logits.size());
  for (int step = 0; step < 20; ++step) {
    EXPECT_FALSE(asked.sample(candidates.all, {}).has_value());
    EXPECT_EQ(asked.sample(logits, {}), not_asked.sample(logits, {}));
  }
}

TEST(CandidateSampling, limits_that_leave_the_rest_no_weight_need_no_draw) {
  std::mt19937_64 random(7);
  Case wanted;
  wanted.vocabulary = 4000;
  wanted.candidates = 256;
  wanted.spread = 3;
  wanted.kind = 1;
  for (const SamplingParameters& parameters :
       {SamplingParameters{.temperature = 0.05F}, SamplingParameters{.min_p = 0.05F},
        SamplingParameters{.temperature = 0.5F, .top_p = 0.9F}}) {
    wanted.parameters = parameters;
    const Count count = expect_same_picks(wanted, random, 100);
    EXPECT_GT(count.sure, 90U);
  }
}

// A token that is not among the candidates may have any logit that is behind them.
TEST(CandidateSampling, a_raised_token_of_the_rest_is_looked_for) {
  std::vector<float> logits(1000, 0.0F);
  for (size_t token = 500; token < 600; ++token) logits[token] = 5;
  const Candidates candidates(logits, 32, {});
  const auto is_sure = [&](SamplingParameters parameters, std::vector<TokenId> prompt = {}) {
    parameters.temperature = 0;
    return Sampler(parameters, prompt, logits.size()).sample(candidates.all, {}).has_value();
  };
  EXPECT_TRUE(is_sure({}));
  EXPECT_FALSE(is_sure({.logit_bias = {{7, 1.0F}}}));
  EXPECT_TRUE(is_sure({.logit_bias = {{7, -1.0F}}}));
  EXPECT_TRUE(is_sure({.logit_bias = {{7, 1.0F}, {7, -2.0F}}}));
  EXPECT_FALSE(is_sure({.repetition_penalty = 0.5F}, {7}));
  EXPECT_TRUE(is_sure({.repetition_penalty = 0.5F}, {500}));
  EXPECT_TRUE(is_sure({.repetition_penalty = 2.0F}, {7}));
  // The likeliest candidates all fall behind.
  std::vector<TokenId> said(100);
  for (size_t index = 0; index < said.size(); ++index)
    said[index] = static_cast<TokenId>(500 + index);
  EXPECT_FALSE(is_sure({.repetition_penalty = 2.0F}, said));
}

// A few tokens that weigh something, among others that weigh nothing.
TEST(FewWeights, sum_and_draw_as_all_weights_together) {
  std::mt19937_64 random(13);
  const size_t vocabulary = 3000;
  const LikelihoodCut all = {-kInfinity, std::numeric_limits<TokenId>::max()};
  for (int round = 0; round < 200; ++round) {
    FewWeights few;
    std::vector<float> weights(vocabulary, 0.0F);
    for (size_t token = random() % 40; token < vocabulary; token += 1 + random() % 60) {
      few.tokens().push_back({static_cast<TokenId>(token), -0.001F * static_cast<float>(token)});
      weights[token] = exp_nonpositive(-0.001F * static_cast<float>(token));
    }
    std::ranges::shuffle(few.tokens(), random);
    few.arrange();
    double sum = 0;
    for (size_t begin = 0; begin < vocabulary; begin += kDrawBlock) {
      sum +=
          sum_in_lanes(std::span(weights).subspan(begin, std::min(kDrawBlock, vocabulary - begin)));
    }
    ASSERT_EQ(few.weigh(all, 0, 1, 0), sum);
    EXPECT_EQ(few.draw(0, vocabulary), few.tokens().front().token);
    // Rounding has put the target behind all weights.
    EXPECT_EQ(few.draw(sum * 1.001, vocabulary), few.tokens().back().token);
    EXPECT_EQ(few.draw(sum * 1.001, vocabulary + 1000), few.tokens().back().token);
  }
}

TEST(LogitRow, fetches_once_and_only_what_is_asked_for) {
  const std::vector<float> logits = {1, 3, 2};
  const std::vector<TokenId> tokens = {1, 2};
  const std::vector<float> likeliest = {3, 2};
  size_t fetched = 0;
  const LogitRow::Fetch fetch = [&]() -> Result<std::span<const float>> {
    ++fetched;
    return logits;
  };
  LogitRow row(tokens, likeliest, true, fetch);
  ASSERT_NE(row.candidates(), nullptr);
  EXPECT_EQ(row.candidates()->last_token, 2);
  EXPECT_TRUE(row.is_finite());
  EXPECT_EQ(fetched, 0U);
  EXPECT_EQ(row.all()->size(), 3U);
  EXPECT_EQ(row.all()->data(), logits.data());
  EXPECT_EQ(fetched, 1U);
  const LogitRow wrong(tokens, likeliest, false, fetch);
  EXPECT_FALSE(wrong.is_finite());
  EXPECT_EQ(wrong.candidates(), nullptr);
  LogitRow whole(logits);
  EXPECT_EQ(whole.candidates(), nullptr);
  EXPECT_EQ(whole.all()->data(), logits.data());
}

}  // namespace
}  // namespace lockstep
