#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "server/api/openai/embeddings.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr RequestLimits kLimits{.vocabulary_size = 100, .context_tokens = 64};
constexpr uint32_t kWidth = 96;
using Ids = std::vector<TokenId>;

ApiResult<EmbeddingRequest> parse(std::string_view fields) {
  return parse_embedding(*parse_json(fmt::format(R"({{"model":"m",{}}})", fields)), kLimits,
                         kWidth);
}

EmbeddingRequest parsed(std::string_view fields) {
  auto asked = parse(fields);
  EXPECT_TRUE(asked) << fields << ": " << asked.error().message;
  return asked ? std::move(*asked) : EmbeddingRequest();
}

// The parameter that an error names, or "" if the request is taken.
std::string refused(std::string_view fields) {
  const auto asked = parse(fields);
  if (asked) return "";
  EXPECT_EQ(asked.error().status, 400);
  EXPECT_THAT(asked.error().message, HasSubstr(asked.error().parameter.value_or("?")));
  return asked.error().parameter.value_or("?");
}

TEST(EmbeddingRequest, takes_all_four_kinds_of_input) {
  EXPECT_THAT(parsed(R"("input":"a")").inputs, ElementsAre(Prompt("a")));
  EXPECT_THAT(parsed(R"("input":["a"," "])").inputs, ElementsAre(Prompt("a"), Prompt(" ")));
  EXPECT_THAT(parsed(R"("input":[1,99])").inputs, ElementsAre(Prompt(Ids{1, 99})));
  EXPECT_THAT(parsed(R"("input":[[1],[2,3]])").inputs,
              ElementsAre(Prompt(Ids{1}), Prompt(Ids{2, 3})));
}

TEST(EmbeddingRequest, unset_fields_have_openais_defaults) {
  const EmbeddingRequest asked = parsed(
      R"("input":"a","encoding_format":null,"dimensions":null,"user":null,"normalize":null)");
  EXPECT_EQ(asked.model, "m");
  EXPECT_FALSE(asked.base64);
  EXPECT_TRUE(asked.add_special_tokens);
  EXPECT_TRUE(asked.request.normalizes);
  EXPECT_EQ(asked.request.priority, 0);
  EXPECT_TRUE(parsed(R"("input":"a","encoding_format":"base64")").base64);
  EXPECT_FALSE(parsed(R"("input":"a","encoding_format":"float")").base64);
  EXPECT_FALSE(parsed(R"("input":"a","normalize":false)").request.normalizes);
  EXPECT_TRUE(parsed(R"("input":"a","normalize":true)").request.normalizes);
  EXPECT_EQ(refused(R"("input":"a","dimensions":96,"user":"me","priority":3)"), "");
}

TEST(EmbeddingRequest, names_what_is_wrong_and_where) {
  for (const auto& [fields, parameter] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("x":1)", "input"},
           {R"("input":null)", "input"},
           {R"("input":"")", "input"},
           {R"("input":[])", "input"},
           {R"("input":{})", "input"},
           {R"("input":5)", "input"},
           {R"("input":true)", "input"},
           {R"("input":[1,-1])", "input"},
           {R"("input":[1,100])", "input"},
           {R"("input":[1.0])", "input"},
           {R"("input":[1,"a"])", "input"},
           {R"("input":[18446744073709551617])", "input"},
           {R"("input":[1e0])", "input"},
           {R"("input":["a",""])", "input[1]"},
           {R"("input":["a",1])", "input[1]"},
           {R"("input":["a",null])", "input[1]"},
           {R"("input":[[1],[]])", "input[1]"},
           {R"("input":[[1],[2],[3,1.5]])", "input[2]"},
           {R"("input":[[1],"a"])", "input[1]"},
           {R"("input":[[[1]]])", "input[0]"},
           {R"("input":[null])", "input[0]"},
           {R"("input":"a","encoding_format":"int8")", "encoding_format"},
           {R"("input":"a","encoding_format":1)", "encoding_format"},
           {R"("input":"a","dimensions":95)", "dimensions"},
           {R"("input":"a","dimensions":0)", "dimensions"},
           {R"("input":"a","dimensions":96.0)", "dimensions"},
           {R"("input":"a","dimensions":"96")", "dimensions"},
           {R"("input":"a","user":1)", "user"},
           {R"("input":"a","normalize":0)", "normalize"},
           {R"("input":"a","stream":true)", "stream"},
           {R"("input":"a","truncate_prompt_tokens":5)", "truncate_prompt_tokens"},
       }) {
    EXPECT_EQ(refused(fields), parameter) << fields;
  }
  EXPECT_EQ(parse_embedding(*parse_json(R"({"input":"a"})"), kLimits, kWidth)->model, std::nullopt);
}

TEST(EmbeddingRequest, has_2048_inputs_at_most) {
  const auto inputs = [](size_t count) {
    return R"("input":)" + to_text(Json(std::vector<std::string>(count, "a")));
  };
  EXPECT_EQ(parsed(inputs(2048)).inputs.size(), 2048U);
  EXPECT_EQ(refused(inputs(2049)), "input");
}

TEST(EmbeddingsBody, writes_base64_as_the_rfc_does) {
  const auto encoded = [](std::vector<float> numbers) { return floats_in_base64(numbers); };
  EXPECT_EQ(encoded({}), "");
  EXPECT_EQ(encoded({1.0F}), "AACAPw==");
  EXPECT_EQ(encoded({1.0F, -2.0F}), "AACAPwAAAMA=");
  EXPECT_EQ(encoded({0.1F, 0.2F, 0.3F}), "zczMPc3MTD6amZk+");
}

TEST(EmbeddingsBody, writes_openais_object_with_numbers_that_are_read_back_whole) {
  std::vector<Output> whole(2);
  whole[0].embedding = {0.1F, -1e-20F, 1.0F / 3};
  whole[1].embedding = {1.0F};
  const AnswerUsage usage{.prompt_tokens = 7};
  const auto body = parse_json(EmbeddingsBody("a \"name\"", false).body(whole, usage));
  ASSERT_TRUE(body) << body.error().message;
  EXPECT_EQ((*body)["object"], "list");
  EXPECT_EQ((*body)["model"], "a \"name\"");
  EXPECT_EQ((*body)["usage"], Json({{"prompt_tokens", 7}, {"total_tokens", 7}}));
  ASSERT_EQ((*body)["data"].size(), 2U);
  const Json& first = (*body)["data"][0];
  EXPECT_EQ(first["object"], "embedding");
  EXPECT_EQ(first["index"], 0);
  EXPECT_EQ(first["embedding"].get<std::vector<float>>(), whole[0].embedding);
  EXPECT_EQ((*body)["data"][1]["index"], 1);
  const auto packed = parse_json(EmbeddingsBody("m", true).body(whole, usage));
  EXPECT_EQ((*packed)["data"][1]["embedding"], "AACAPw==");
}

}  // namespace
}  // namespace lockstep
