// Tests traces and made loads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/simulation/simulation.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(Trace, has_a_request_per_line_in_the_order_of_arrival) {
  const auto trace = parse_trace(
      "{\"arrival\": 2, \"prompt\": 10, \"answer\": 3, \"tenant\": \"a\"}\n"
      "\n"
      "{\"arrival\": 0.5, \"prompt\": 8, \"answer\": 1, \"prefix\": \"p\", \"prefix_tokens\": "
      "5}\r\n"
      "{\"arrival\": 3, \"prompt\": 7, \"answer\": 1, \"prefix\": \"p\", \"conversation\": \"c\"}");
  ASSERT_TRUE(trace) << trace.error().message;
  ASSERT_EQ(trace->size(), 3U);
  EXPECT_EQ((*trace)[0].arrival, 0.5);
  EXPECT_EQ((*trace)[0].prefix_tokens, 5U);
  EXPECT_EQ((*trace)[1].tenant, "a");
  EXPECT_EQ((*trace)[1].prefix_tokens, 0U);
  EXPECT_EQ((*trace)[2].prefix_tokens, 7U) << "the whole prompt, where nothing else is said";
  EXPECT_EQ((*trace)[2].conversation, "c");
}

TEST(Trace, names_the_line_and_what_is_wrong) {
  const std::string good = "{\"arrival\": 0, \"prompt\": 1, \"answer\": 1}\n";
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"[]", "must be an object, not an array"},
      {"{\"arrival\": 0, \"prompt\": 1}", "\"answer\" is missing"},
      {"{\"arrival\": -1, \"prompt\": 1, \"answer\": 1}", "\"arrival\" must be"},
      {"{\"arrival\": 0, \"prompt\": 0, \"answer\": 1}", "\"prompt\" must be an integer from 1"},
      {"{\"arrival\": 0, \"prompt\": 1, \"answer\": 1.5}", "not 1.5"},
      {"{\"arrival\": 0, \"prompt\": 1, \"answer\": 1, \"tokens\": 2}", "\"tokens\" is unknown"},
      {"{\"arrival\": 0, \"prompt\": 1, \"answer\": 1, \"prefix\": 2}",
       "\"prefix\" must be a string"},
      {"{\"arrival\": 0, \"prompt\": 1, \"answer\": 1, \"prefix_tokens\": 2}", "the prompt has 1"},
      {"{", "line 2: "}};
  for (const auto& [line, message] : wrong) {
    const auto trace = parse_trace(good + line);
    ASSERT_FALSE(trace) << line;
    EXPECT_THAT(trace.error().message, testing::StartsWith("line 2: "));
    EXPECT_THAT(trace.error().message, HasSubstr(message));
  }
  EXPECT_THAT(parse_trace("\n \n").error().message, HasSubstr("no request"));
}

TEST(Tokens, are_shared_by_prefix_and_conversation_alone) {
  const SimulatedRequest one = {
      .tenant = {}, .prompt_tokens = 6, .prefix = "p", .prefix_tokens = 3, .conversation = {}};
  SimulatedRequest talk = one;
  talk.conversation = "c";
  for (size_t position = 0; position < 9; ++position) {
    const bool in_prefix = position < 3;
    EXPECT_EQ(token_at(one, 1, position) == token_at(one, 2, position), in_prefix) << position;
    EXPECT_EQ(token_at(one, 1, position) == token_at(talk, 1, position), in_prefix) << position;
    EXPECT_EQ(token_at(talk, 1, position), token_at(talk, 2, position)) << position;
    EXPECT_GE(token_at(one, 1, position), 0);
  }
  EXPECT_NE(token_at(one, 1, 0), token_at(one, 1, 1));
}

TEST(LengthRange, is_a_number_or_two) {
  EXPECT_EQ(parse_length_range("7", "--prompt")->most, 7U);
  EXPECT_EQ(parse_length_range("7-9", "--prompt")->least, 7U);
  EXPECT_EQ(parse_length_range("7-9", "--prompt")->most, 9U);
  for (const char* text : {"", "0", "9-7", "7-", "-7", "7-9-", "x", "99999999999", "7 "}) {
    const auto range = parse_length_range(text, "--prompt");
    ASSERT_FALSE(range) << text;
    EXPECT_THAT(range.error().message, testing::StartsWith("--prompt: "));
  }
}

TEST(Arrivals, come_as_often_as_asked_and_are_the_same_from_a_seed) {
  ArrivalProcess process = {.requests_per_second = 20,
                            .seconds = 500,
                            .prompt = {100, 300},
                            .answer = {5, 5},
                            .prefix_tokens = 150,
                            .prefix_count = 3,
                            .tenant_count = 2};
  const auto requests = make_arrivals(process);
  // Four standard deviations of a Poisson process with a mean of 10,000.
  EXPECT_NEAR(static_cast<double>(requests.size()), 10'000, 400);
  double tokens = 0;
  std::set<std::string> prefixes;
  std::set<std::string> tenants;
  for (size_t index = 0; index < requests.size(); ++index) {
    const SimulatedRequest& request = requests[index];
    EXPECT_GE(request.arrival, index > 0 ? requests[index - 1].arrival : 0);
    EXPECT_TRUE(request.prompt_tokens >= 100 && request.prompt_tokens <= 300);
    EXPECT_EQ(request.answer_tokens, 5U);
    EXPECT_EQ(request.prefix_tokens, std::min<size_t>(150, request.prompt_tokens));
    tokens += static_cast<double>(request.prompt_tokens);
    prefixes.insert(request.prefix);
    tenants.insert(request.tenant);
  }
  EXPECT_NEAR(tokens / static_cast<double>(requests.size()), 200, 4);
  EXPECT_EQ(prefixes.size(), 3U);
  EXPECT_EQ(tenants.size(), 2U);
  EXPECT_LT(requests.back().arrival, 500);
  const auto again = make_arrivals(process);
  ASSERT_EQ(again.size(), requests.size());
  EXPECT_EQ(again.back().arrival, requests.back().arrival);
  process.seed = 2;
  EXPECT_NE(make_arrivals(process).front().arrival, requests.front().arrival);
}

}  // namespace
}  // namespace lockstep
