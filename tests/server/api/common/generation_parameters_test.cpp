#include "server/api/common/generation_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr RequestLimits kLimits{
    .vocabulary_size = 100, .context_tokens = 64, .choices_max = 128, .requests_max = 10};
constexpr uint32_t kDefault = 16;

std::vector<TokenId> prompt_of(size_t tokens) {
  return std::vector<TokenId>(tokens, 5);
}

ApiResult<std::vector<Request>> make(const GenerationParameters& parameters,
                                     const std::vector<std::vector<TokenId>>& prompts) {
  return make_requests(parameters, prompts, kDefault, kLimits, "prompt", 1234);
}

TEST(GenerationParameters, every_prompt_gets_its_choices_in_order) {
  GenerationParameters parameters;
  parameters.choices = 3;
  const auto requests = make(parameters, {{1}, {2, 2}});
  ASSERT_TRUE(requests);
  ASSERT_EQ(requests->size(), 6U);
  for (size_t index = 0; index < 6; ++index) {
    EXPECT_EQ((*requests)[index].prompt.size(), index < 3 ? 1U : 2U) << index;
    EXPECT_EQ((*requests)[index].max_tokens, kDefault);
  }
}

TEST(GenerationParameters, a_choice_has_a_seed_of_its_own_that_the_requests_seed_decides) {
  GenerationParameters parameters;
  parameters.choices = 5;
  parameters.seed = 42;
  const auto requests = make(parameters, {{1}, {2}});
  const auto again = make(parameters, {{1}, {2}});
  ASSERT_TRUE(requests && again);
  std::set<uint64_t> seeds;
  for (size_t index = 0; index < 10; ++index) {
    EXPECT_EQ((*requests)[index].sampling.seed, (*again)[index].sampling.seed);
    if (index < 5) seeds.insert((*requests)[index].sampling.seed);
  }
  EXPECT_EQ((*requests)[0].sampling.seed, 42U);
  EXPECT_EQ(seeds.size(), 5U);
  // A prompt in a list is answered as it would be alone.
  EXPECT_EQ((*requests)[5].sampling.seed, 42U);
  EXPECT_EQ((*requests)[6].sampling.seed, (*requests)[1].sampling.seed);
}

TEST(GenerationParameters, without_a_seed_the_random_one_is_used) {
  const auto requests = make({}, {{1}});
  ASSERT_TRUE(requests);
  EXPECT_EQ(requests->front().sampling.seed, 1234U);
}

TEST(GenerationParameters, the_default_length_is_cut_to_what_the_context_leaves) {
  const auto requests = make({}, {prompt_of(60)});
  ASSERT_TRUE(requests);
  EXPECT_EQ(requests->front().max_tokens, 4U);
}

TEST(GenerationParameters, what_fits_exactly_is_taken_and_one_more_is_refused_with_the_numbers) {
  GenerationParameters parameters;
  parameters.max_tokens = 10;
  EXPECT_TRUE(make(parameters, {prompt_of(54)}));
  const auto refused = make(parameters, {prompt_of(55)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 400);
  EXPECT_EQ(refused.error().code, "context_length_exceeded");
  EXPECT_EQ(refused.error().parameter, "prompt");
  EXPECT_THAT(refused.error().message,
              testing::AllOf(HasSubstr("64 tokens"), HasSubstr("65 were requested"),
                             HasSubstr("55 in the prompt"), HasSubstr("10 to generate")));
  EXPECT_FALSE(make({}, {prompt_of(64)}));  // space for no token at all
}

TEST(GenerationParameters, a_prompt_that_nothing_follows_may_fill_the_context) {
  GenerationParameters parameters;
  parameters.max_tokens = 0;
  const auto requests = make(parameters, {prompt_of(64)});
  ASSERT_TRUE(requests) << requests.error().message;
  EXPECT_EQ(requests->front().max_tokens, 0U);
  const auto refused = make(parameters, {prompt_of(65)});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              testing::AllOf(HasSubstr("64 tokens"), HasSubstr("65 were requested"),
                             HasSubstr("65 in the prompt"), HasSubstr("0 to generate")));
}

TEST(GenerationParameters, more_choices_than_the_engine_ever_holds_are_refused) {
  GenerationParameters parameters;
  parameters.choices = 5;
  EXPECT_TRUE(make(parameters, {{1}, {2}}));
  parameters.choices = 6;
  const auto refused = make(parameters, {{1}, {2}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 400);
  EXPECT_THAT(refused.error().message, HasSubstr("12 choices"));
}

TEST(GenerationParameters,
     more_tokens_of_prompts_than_the_limit_are_refused_before_they_are_copied) {
  RequestLimits limits = kLimits;
  limits.prompt_tokens_max = 240;
  GenerationParameters parameters;
  parameters.choices = 4;
  const auto make_limited = [&](const std::vector<std::vector<TokenId>>& prompts) {
    return make_requests(parameters, prompts, kDefault, limits, "prompt", 1234);
  };
  EXPECT_TRUE(make_limited({prompt_of(60)}));
  EXPECT_TRUE(make_limited({prompt_of(30), prompt_of(30)}));
  const auto refused = make_limited({prompt_of(30), prompt_of(31)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 400);
  EXPECT_EQ(refused.error().parameter, "prompt");
  EXPECT_THAT(refused.error().message,
              testing::AllOf(HasSubstr("8 choices"), HasSubstr("244 tokens"), HasSubstr("240")));
}

TEST(GenerationParameters, a_whole_answer_that_could_grow_too_large_is_refused_with_numbers) {
  RequestLimits limits = kLimits;
  limits.answer_bytes_max = 100'000;
  GenerationParameters parameters;
  const auto refusal = [&](uint32_t choices, uint32_t logprobs, uint32_t max_tokens, bool stream) {
    parameters.choices = choices;
    parameters.stream = stream;
    parameters.max_tokens = max_tokens;
    parameters.request.logprobs = logprobs;
    const auto made = make_requests(parameters, {prompt_of(1)}, kDefault, limits, "prompt", 1234);
    return made ? std::nullopt : std::optional(made.error());
  };
  EXPECT_FALSE(refusal(2, 20, 5, false));
  EXPECT_FALSE(refusal(10, 0, 16, false));
  const auto refused = refusal(10, 20, 50, false);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 400);
  EXPECT_EQ(refused->parameter, "n");
  EXPECT_THAT(refused->message,
              testing::AllOf(HasSubstr("10 choices"), HasSubstr("500 tokens"),
                             HasSubstr("21 log-probabilities"), HasSubstr("at most 100000")));
  // Neither a stream, which is given away as it comes, nor one choice, which the context bounds.
  EXPECT_FALSE(refusal(10, 20, 50, true));
  EXPECT_FALSE(refusal(1, 20, 63, false));
}

TEST(GenerationParameters, the_log_probabilities_of_echoed_prompts_count_as_well) {
  RequestLimits limits = kLimits;
  limits.answer_bytes_max = 100'000;
  GenerationParameters parameters;
  parameters.max_tokens = 1;
  parameters.request.logprobs = parameters.request.prompt_logprobs = 5;
  const std::vector<std::vector<TokenId>> prompts(4, prompt_of(60));
  const auto refused = make_requests(parameters, prompts, kDefault, limits, "prompt", 1234);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().parameter, "prompt");
  parameters.request.prompt_logprobs.reset();
  EXPECT_TRUE(make_requests(parameters, prompts, kDefault, limits, "prompt", 1234));
}

TEST(GenerationParameters, more_tokens_at_least_than_at_most_are_refused) {
  GenerationParameters parameters;
  parameters.request.min_tokens = 17;
  const auto refused = make(parameters, {{1}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().parameter, "min_tokens");
}

Request parsed(const Json& fields, double request_seconds,
               std::optional<ApiError>* error = nullptr) {
  Json body = {{"model", "m"}};
  if (!fields.is_null()) body.update(fields);
  RequestLimits limits = kLimits;
  limits.request_seconds = request_seconds;
  JsonFields reader(body);
  Request request = parse_generation(reader, limits).request;
  if (error != nullptr) *error = reader.error();
  return request;
}

TEST(GenerationParameters, a_request_may_ask_for_less_time_than_the_server_gives) {
  EXPECT_EQ(parsed({}, 0).deadline_seconds, 0);
  EXPECT_EQ(parsed({}, 30).deadline_seconds, 30);
  EXPECT_EQ(parsed({{"timeout", 2.5}}, 0).deadline_seconds, 2.5);
  EXPECT_EQ(parsed({{"timeout", 2.5}}, 30).deadline_seconds, 2.5);
  EXPECT_EQ(parsed({{"timeout", 40}}, 30).deadline_seconds, 30);
}

TEST(GenerationParameters, priority_and_salt_are_taken_over_within_their_ranges) {
  const Request request = parsed({{"priority", -7}, {"cache_salt", "mine"}}, 0);
  EXPECT_EQ(request.priority, -7);
  EXPECT_EQ(request.cache_salt, "mine");
  EXPECT_EQ(parsed({}, 0).priority, 0);
  std::optional<ApiError> error;
  for (const Json& wrong : {Json{{"priority", 1001}}, Json{{"priority", 0.5}}, Json{{"timeout", 0}},
                            Json{{"cache_salt", std::string(257, 'x')}}}) {
    parsed(wrong, 0, &error);
    ASSERT_TRUE(error.has_value()) << to_text(wrong);
    EXPECT_EQ(error->parameter, wrong.begin().key());
  }
}

TEST(GenerationParameters, a_slot_is_one_of_those_there_are_or_any_where_there_are_none) {
  struct Case {
    uint32_t slot_count;
    int given;
    std::optional<uint32_t> slot;  // none: it is refused
  };
  for (const Case& one : {Case{2, 1, 1}, Case{2, -1, 0}, Case{2, 2, {}}, Case{2, -2, {}},
                          Case{0, 3, 0}, Case{0, -1, 0}, Case{0, -2, {}}}) {
    SCOPED_TRACE(fmt::format("{} of {}", one.given, one.slot_count));
    RequestLimits limits = kLimits;
    limits.slot_count = one.slot_count;
    const Json body = {{"model", "m"}, {"id_slot", one.given}};
    JsonFields fields(body);
    const auto parameters = parse_generation(fields, limits);
    EXPECT_EQ(fields.error().has_value(), !one.slot.has_value());
    if (!one.slot) continue;
    EXPECT_EQ(parameters.slot, *one.slot);
  }
}

TEST(GenerationParameters, the_number_of_biases_is_limited) {
  RequestLimits limits = kLimits;
  limits.vocabulary_size = 2000;
  for (const int count : {1024, 1025}) {
    Json body = {{"model", "m"}, {"logit_bias", Json::object()}};
    for (int token = 0; token < count; ++token) body["logit_bias"][std::to_string(token)] = 1;
    JsonFields fields(body);
    const Request request = parse_generation(fields, limits).request;
    EXPECT_EQ(fields.error().has_value(), count > 1024);
    if (fields.error()) {
      EXPECT_EQ(fields.error()->parameter, "logit_bias");
      EXPECT_THAT(fields.error()->message, HasSubstr("1025"));
    } else {
      EXPECT_EQ(request.sampling.logit_bias.size(), 1024U);
    }
  }
}

}  // namespace
}  // namespace lockstep
