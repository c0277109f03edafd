#include "server/api/openai/completion_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr RequestLimits kLimits{
    .vocabulary_size = 100, .context_tokens = 64, .choices_max = 128, .requests_max = 100};

ApiResult<CompletionRequest> parse(std::string_view fields) {
  return parse_completion(
      *parse_json(fmt::format(R"({{"model":"m"{}{}}})", fields.empty() ? "" : ",", fields)),
      kLimits);
}

CompletionRequest parsed(std::string_view fields) {
  auto request = parse(fields);
  EXPECT_TRUE(request) << fields << ": " << request.error().message;
  return request ? std::move(*request) : CompletionRequest();
}

// The parameter that an error names, or "" if the request is taken.
std::string refused(std::string_view fields) {
  const auto request = parse(fields);
  if (request) return "";
  EXPECT_EQ(request.error().status, 400);
  EXPECT_THAT(request.error().message, HasSubstr(request.error().parameter.value_or("?")));
  return request.error().parameter.value_or("?");
}

// The list ends with what no prompt may be: a look at it would have said that.
TEST(CompletionRequest, more_prompts_than_are_ever_admitted_are_refused_before_any_is_looked_at) {
  for (const std::string_view prompt : {R"("")", "[1]"}) {
    std::string list;
    for (int count = 0; count < 100; ++count) list += fmt::format("{},", prompt);
    const auto refusal = parse(fmt::format(R"("prompt":[{}true])", list));
    ASSERT_FALSE(refusal);
    EXPECT_EQ(refusal.error().status, 400);
    EXPECT_EQ(refusal.error().parameter, "prompt");
    EXPECT_THAT(
        refusal.error().message,
        HasSubstr("101 prompts with n = 1 make 101 choices; this server takes at most 100"));
    list.pop_back();
    EXPECT_EQ(parsed(fmt::format(R"("prompt":[{}])", list)).prompts.size(), 100U);
    EXPECT_EQ(refused(fmt::format(R"("n":2,"prompt":[{}])", list)), "prompt");
  }
  // One prompt of many tokens is one prompt.
  std::string ids = "1";
  for (int count = 0; count < 200; ++count) ids += ",1";
  EXPECT_EQ(parsed(fmt::format(R"("prompt":[{}])", ids)).prompts.size(), 1U);
}

TEST(CompletionRequest, too_many_stop_strings_are_refused_before_any_is_looked_at) {
  const auto refusal = parse(R"("stop":[1,"a","a","a","a","a","a","a","a","a","a","a","a","a","a",
                                "a","a"])");
  ASSERT_FALSE(refusal);
  EXPECT_THAT(refusal.error().message, HasSubstr("at most 16 strings, not 17"));
}

TEST(CompletionRequest, unset_fields_have_openais_defaults) {
  for (const std::string_view fields :
       {"", R"("prompt":null,"max_tokens":null,"temperature":null,"top_p":null,"n":null,
               "logprobs":null,"echo":null,"stop":null,"seed":null,"stream":null,
               "stream_options":null,"logit_bias":null,"suffix":null,"best_of":null,
               "presence_penalty":null,"frequency_penalty":null,"user":null)"}) {
    const CompletionRequest request = parsed(fields);
    const Request& generation = request.parameters.request;
    EXPECT_THAT(request.prompts, ElementsAre(Prompt(std::string())));
    EXPECT_EQ(request.parameters.model, "m");
    EXPECT_EQ(request.parameters.max_tokens, std::nullopt);
    EXPECT_EQ(request.parameters.choices, 1U);
    EXPECT_EQ(request.parameters.seed, std::nullopt);
    EXPECT_FALSE(request.parameters.stream);
    EXPECT_FALSE(request.echo);
    EXPECT_FALSE(generation.logprobs);
    EXPECT_EQ(generation.sampling.temperature, 1.0F);
    EXPECT_EQ(generation.sampling.top_p, 1.0F);
    EXPECT_EQ(generation.sampling.top_k, 0U);
    EXPECT_EQ(generation.sampling.repetition_penalty, 1.0F);
    EXPECT_TRUE(generation.stop.empty());
    EXPECT_TRUE(generation.skip_special_tokens);
    EXPECT_FALSE(generation.ignore_eos);
  }
}

TEST(CompletionRequest, all_four_forms_of_a_prompt_are_taken) {
  EXPECT_THAT(parsed(R"("prompt":"a")").prompts, ElementsAre(Prompt("a")));
  EXPECT_THAT(parsed(R"("prompt":["a","b"])").prompts, ElementsAre(Prompt("a"), Prompt("b")));
  EXPECT_THAT(parsed(R"("prompt":[0,99])").prompts,
              ElementsAre(Prompt(std::vector<TokenId>{0, 99})));
  EXPECT_THAT(parsed(R"("prompt":[[1],[2,3]])").prompts,
              ElementsAre(Prompt(std::vector<TokenId>{1}), Prompt(std::vector<TokenId>{2, 3})));
}

TEST(CompletionRequest, other_prompts_are_refused) {
  for (const std::string_view prompt :
       {"1", "true", "{}", "[]", "[[]]", "[1,\"a\"]", "[\"a\",1]", "[1,[2]]", "[[1],2]", "[100]",
        "[-1]", "[1.0]", "[true]", "[null]", "[[1],[100]]", "[[[1]]]", "[99999999999999999999]"}) {
    EXPECT_EQ(refused(fmt::format("\"prompt\":{}", prompt)), "prompt") << prompt;
  }
}

TEST(CompletionRequest, every_field_reaches_the_engine) {
  const CompletionRequest request = parsed(
      R"("max_tokens":7,"temperature":0.5,"top_p":0.25,"top_k":3,"min_p":0.125,"n":2,"seed":-1,
         "presence_penalty":1.5,"frequency_penalty":-1.5,"repetition_penalty":1.25,
         "logit_bias":{"5":-100,"6":2.5},"stop":["x","y"],"stop_token_ids":[8],"min_tokens":2,
         "ignore_eos":true,"skip_special_tokens":false,"logprobs":2,"echo":true,"stream":true,
         "stream_options":{"include_usage":true})");
  const Request& generation = request.parameters.request;
  EXPECT_EQ(request.parameters.max_tokens, 7U);
  EXPECT_EQ(request.parameters.choices, 2U);
  EXPECT_EQ(request.parameters.seed, UINT64_MAX);
  EXPECT_TRUE(request.parameters.stream);
  EXPECT_TRUE(request.parameters.include_usage);
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(generation.sampling.temperature, 0.5F);
  EXPECT_EQ(generation.sampling.top_p, 0.25F);
  EXPECT_EQ(generation.sampling.top_k, 3U);
  EXPECT_EQ(generation.sampling.min_p, 0.125F);
  EXPECT_EQ(generation.sampling.presence_penalty, 1.5F);
  EXPECT_EQ(generation.sampling.frequency_penalty, -1.5F);
  EXPECT_EQ(generation.sampling.repetition_penalty, 1.25F);
  EXPECT_THAT(generation.sampling.logit_bias,
              ElementsAre(std::pair(5, -100.0F), std::pair(6, 2.5F)));
  EXPECT_THAT(generation.stop, ElementsAre("x", "y"));
  EXPECT_THAT(generation.stop_tokens, ElementsAre(8));
  EXPECT_EQ(generation.min_tokens, 2U);
  EXPECT_TRUE(generation.ignore_eos);
  EXPECT_FALSE(generation.skip_special_tokens);
  EXPECT_EQ(generation.logprobs, 2U);
  EXPECT_EQ(generation.prompt_logprobs, 2U);
}

TEST(CompletionRequest, prompt_logprobs_are_asked_for_only_with_echo) {
  EXPECT_FALSE(parsed(R"("logprobs":1)").parameters.request.prompt_logprobs);
  EXPECT_FALSE(parsed(R"("echo":true)").parameters.request.prompt_logprobs);
}

struct Refusal {
  const char* fields;
  const char* parameter;
};

TEST(CompletionRequest, values_of_another_type_or_out_of_range_name_their_parameter) {
  constexpr Refusal kRefusals[] = {
      {R"("max_tokens":-1)", "max_tokens"},
      {R"("max_tokens":1.0)", "max_tokens"},
      {R"("max_tokens":"16")", "max_tokens"},
      {R"("max_tokens":4294967296)", "max_tokens"},
      {R"("temperature":-1)", "temperature"},
      {R"("temperature":2.1)", "temperature"},
      {R"("temperature":"1")", "temperature"},
      {R"("temperature":true)", "temperature"},
      {R"("top_p":-0.1)", "top_p"},
      {R"("top_p":1.1)", "top_p"},
      {R"("n":0)", "n"},
      {R"("n":129)", "n"},
      {R"("n":1.5)", "n"},
      {R"("logprobs":6)", "logprobs"},
      {R"("logprobs":-1)", "logprobs"},
      {R"("logprobs":true)", "logprobs"},
      {R"("echo":1)", "echo"},
      {R"("stream":"true")", "stream"},
      {R"("stream":true,"stream_options":[])", "stream_options"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("seed":1.5)", "seed"},
      {R"("seed":9223372036854775808)", "seed"},
      {R"("presence_penalty":2.1)", "presence_penalty"},
      {R"("frequency_penalty":-2.1)", "frequency_penalty"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("min_p":1.1)", "min_p"},
      {R"("top_k":-2)", "top_k"},
      {R"("top_k":1.0)", "top_k"},
      {R"("stop":1)", "stop"},
      {R"("stop":[1])", "stop"},
      {R"("stop":"")", "stop"},
      {R"("stop":["a",""])", "stop"},
      {R"("stop":[null])", "stop"},
      {R"("stop_token_ids":[100])", "stop_token_ids"},
      {R"("stop_token_ids":["1"])", "stop_token_ids"},
      {R"("logit_bias":{"100":1})", "logit_bias"},
      {R"("logit_bias":{"-1":1})", "logit_bias"},
      {R"("logit_bias":{"a":1})", "logit_bias"},
      {R"("logit_bias":{" 1":1})", "logit_bias"},
      {R"("logit_bias":{"1":101})", "logit_bias"},
      {R"("logit_bias":{"1":"1"})", "logit_bias"},
      {R"("logit_bias":[1])", "logit_bias"},
      {R"("min_tokens":-1)", "min_tokens"},
      {R"("ignore_eos":"yes")", "ignore_eos"},
      {R"("best_of":2)", "best_of"},
      {R"("best_of":21,"n":21)", "best_of"},
      {R"("suffix":"end")", "suffix"},
      {R"("response_format":{"type":"xml"})", "response_format.type"},
      {R"("grammar":3)", "grammar"},
      {R"("grammar":"root ::= x","regex":"y")", "grammar"},
      {R"("use_beam_search":true)", "use_beam_search"},
  };
  for (const Refusal& refusal : kRefusals) {
    EXPECT_EQ(refused(refusal.fields), refusal.parameter) << refusal.fields;
  }
}

TEST(CompletionRequest, a_model_may_be_left_out) {
  for (const std::string_view body : {"{}", R"({"model":null})"}) {
    const auto request = parse_completion(*parse_json(body), kLimits);
    ASSERT_TRUE(request) << body;
    EXPECT_EQ(request->parameters.model, std::nullopt);
  }
}

TEST(CompletionRequest, what_changes_nothing_is_taken) {
  parsed(R"("best_of":1)");
  parsed(R"("n":2,"best_of":2)");
  parsed(R"("suffix":"")");
  parsed(R"("response_format":{"type":"text"})");
  parsed(R"("user":"me","metadata":{"a":"b"},"service_tier":"auto","simulated":[1,2])");
  parsed(R"("stop":[])");
  parsed(R"("top_p":0)");
  EXPECT_GT(parsed(R"("top_p":0)").parameters.request.sampling.top_p, 0.0F);
  EXPECT_EQ(parsed(R"("top_k":-1)").parameters.request.sampling.top_k, 0U);
  EXPECT_EQ(parsed(R"("max_tokens":0)").parameters.max_tokens, 0U);
}

TEST(CompletionRequest, up_to_sixteen_stop_strings_are_taken) {
  const auto stops = [](int count) {
    Json list = Json::array();
    for (int index = 0; index < count; ++index) list.push_back(fmt::format("s{}", index));
    return fmt::format("\"stop\":{}", to_text(list));
  };
  EXPECT_EQ(parsed(stops(16)).parameters.request.stop.size(), 16U);
  EXPECT_EQ(refused(stops(17)), "stop");
}

}  // namespace
}  // namespace lockstep
