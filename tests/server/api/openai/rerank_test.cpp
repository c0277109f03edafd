#include "server/api/openai/rerank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr RequestLimits kLimits{.vocabulary_size = 100, .context_tokens = 64};

ApiResult<RerankRequest> parse(std::string_view fields) {
  return parse_rerank(*parse_json(fmt::format(R"({{"model":"m",{}}})", fields)), kLimits);
}

// The parameter that an error names, or "" if the request is taken.
std::string refused(std::string_view fields) {
  const auto asked = parse(fields);
  if (asked) return "";
  EXPECT_EQ(asked.error().status, 400);
  EXPECT_THAT(asked.error().message, HasSubstr(asked.error().parameter.value_or("?")));
  return asked.error().parameter.value_or("?");
}

TEST(RerankRequest, takes_documents_as_strings_and_as_objects) {
  const auto asked = parse(R"("query":"q","documents":["a",{"text":"b","title":"c"},""])");
  ASSERT_TRUE(asked) << asked.error().message;
  EXPECT_EQ(asked->query, "q");
  EXPECT_THAT(asked->documents, ElementsAre("a", "b", ""));
  EXPECT_EQ(asked->top_n, 3U);
  EXPECT_FALSE(asked->return_documents);
  EXPECT_FALSE(asked->normalize);
  const auto some = parse(
      R"("query":"q","documents":["a","b"],"top_n":1,"return_documents":true,"normalize":true)");
  ASSERT_TRUE(some) << some.error().message;
  EXPECT_EQ(some->top_n, 1U);
  EXPECT_TRUE(some->return_documents);
  EXPECT_TRUE(some->normalize);
  EXPECT_EQ(parse(R"("query":"q","documents":["a","b"],"top_n":9)")->top_n, 2U);
}

TEST(RerankRequest, names_what_is_wrong_and_where) {
  for (const auto& [fields, parameter] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("documents":["a"])", "query"},
           {R"("query":"","documents":["a"])", "query"},
           {R"("query":5,"documents":["a"])", "query"},
           {R"("query":"q")", "documents"},
           {R"("query":"q","documents":[])", "documents"},
           {R"("query":"q","documents":"a")", "documents"},
           {R"("query":"q","documents":["a",5])", "documents[1]"},
           {R"("query":"q","documents":["a",{"title":"b"}])", "documents[1]"},
           {R"("query":"q","documents":["a"],"top_n":0)", "top_n"},
           {R"("query":"q","documents":["a"],"top_n":1.5)", "top_n"},
           {R"("query":"q","documents":["a"],"return_documents":1)", "return_documents"},
           {R"("query":"q","documents":["a"],"normalize":1)", "normalize"},
           {R"("query":"q","documents":["a"],"stream":true)", "stream"}}) {
    EXPECT_EQ(refused(fields), parameter) << fields;
  }
  std::string many;
  for (int count = 0; count < 2049; ++count) many += count == 0 ? R"("a")" : R"(,"a")";
  EXPECT_EQ(refused(fmt::format(R"("query":"q","documents":[{}])", many)), "documents");
}

TEST(Relevance, is_the_score_of_one_class_and_the_first_ones_part_of_several) {
  EXPECT_EQ(relevance({-3.5F}, false), -3.5F);
  for (const bool normalize : {false, true}) {
    EXPECT_EQ(relevance({2, 2}, normalize), 0.5F);
    EXPECT_FLOAT_EQ(relevance({1, 0}, normalize), static_cast<float>(1 / (1 + std::exp(-1.0))));
    EXPECT_EQ(relevance({-1000, 1000}, normalize), 0.0F);
  }
}

TEST(Relevance, of_one_class_is_from_0_to_1_where_it_is_normalized) {
  EXPECT_EQ(relevance({0}, true), 0.5F);
  EXPECT_FLOAT_EQ(relevance({-3.5F}, true), static_cast<float>(1 / (1 + std::exp(3.5))));
  EXPECT_EQ(relevance({-1000}, true), 0.0F);
  EXPECT_EQ(relevance({1000}, true), 1.0F);
}

TEST(RerankBody, has_the_most_relevant_first_and_of_equal_ones_the_first) {
  const auto output = [](float score) {
    Output made;
    made.scores = {score};
    return made;
  };
  const std::vector<Output> whole = {output(0.25F), output(-1), output(2), output(0.25F)};
  RerankBody all("m", 4, false, {});
  EXPECT_EQ(all.body(whole, {.prompt_tokens = 12}),
            R"({"object":"list","model":"m","results":[{"index":2,"relevance_score":2},)"
            R"({"index":0,"relevance_score":0.25},{"index":3,"relevance_score":0.25},)"
            R"({"index":1,"relevance_score":-1}],)"
            R"("usage":{"prompt_tokens":12,"total_tokens":12}})");
  RerankBody some("m", 1, false, {"a", "b", "c\"", "d"});
  EXPECT_EQ(some.body(whole, {.prompt_tokens = 12}),
            R"({"object":"list","model":"m","results":[{"index":2,"relevance_score":2,)"
            R"("document":{"text":"c\""}}],"usage":{"prompt_tokens":12,"total_tokens":12}})");
  const std::vector<Output> large = {output(200), output(0), output(300)};
  RerankBody normalized("m", 3, true, {});
  EXPECT_EQ(normalized.body(large, {.prompt_tokens = 9}),
            R"({"object":"list","model":"m","results":[{"index":2,"relevance_score":1},)"
            R"({"index":0,"relevance_score":1},{"index":1,"relevance_score":0.5}],)"
            R"("usage":{"prompt_tokens":9,"total_tokens":9}})");
}

}  // namespace
}  // namespace lockstep
