// The items of a response, whole and streamed, by how and where its text ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/openai/responses_answer.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

Output output_of(std::string text, std::optional<FinishReason> finish = std::nullopt) {
  Output output;
  output.text = std::move(text);
  output.finish = finish;
  return output;
}

// "message completed", say, of each item of a response.
std::vector<std::string> items_of(const Json& response) {
  std::vector<std::string> items;
  for (const Json& item : response["output"]) {
    items.push_back(item["type"].get<std::string>() + " " + item["status"].get<std::string>());
  }
  return items;
}

// The data of the events with this name.
std::vector<Json> events_of(std::string_view stream, std::string_view name) {
  std::vector<Json> events;
  const std::string head = fmt::format("event: {}\ndata: ", name);
  for (size_t at = stream.find(head); at != std::string_view::npos; at = stream.find(head, at)) {
    at += head.size();
    events.push_back(*parse_json(stream.substr(at, stream.find("\n\n", at) - at)));
  }
  return events;
}

constexpr const char* kEchoed = R"("metadata":{"k":"v"},"store":false)";

// The items of an answer with this text, the same whole and streamed byte by byte.
std::vector<std::string> items(const TurnRules& rules, std::string_view text, FinishReason finish) {
  ResponsesBody whole(rules, response_head("m", kEchoed));
  const Json body = *parse_json(whole.body({output_of(std::string(text), finish)}, {}));
  EXPECT_EQ(body["metadata"], Json({{"k", "v"}}));
  ResponsesStream writer(rules, response_head("m", kEchoed));
  std::string stream = writer.opening({});
  for (const char byte : text) stream += writer.news(0, output_of({byte}));
  stream += writer.news(0, output_of("", finish));
  stream += writer.ending({});
  const std::string status = body["status"].get<std::string>();
  const auto endings = events_of(stream, "response." + status);
  EXPECT_EQ(endings.size(), 1U) << stream;
  if (endings.empty()) return {};
  const Json& last = endings.front()["response"];
  EXPECT_EQ(last["status"], status);
  for (const std::string_view name : {"response.created", "response.in_progress"}) {
    const auto begun = events_of(stream, name);
    EXPECT_EQ(begun.size(), 1U);
    EXPECT_EQ(begun.at(0)["response"]["metadata"], body["metadata"]) << name;
  }
  EXPECT_EQ(items_of(last), items_of(body)) << text;
  const auto done = events_of(stream, "response.output_item.done");
  EXPECT_EQ(done.size(), last["output"].size());
  for (size_t index = 0; index < done.size(); ++index) {
    EXPECT_EQ(done[index]["item"], last["output"][index]);
  }
  return items_of(body);
}

constexpr auto kStop = FinishReason::kStop;
constexpr auto kLength = FinishReason::kLength;

TEST(Responses, a_text_that_is_cut_at_its_length_is_incomplete_as_the_response_is) {
  EXPECT_THAT(items({}, "So it", kLength), ElementsAre("message incomplete"));
  EXPECT_THAT(items({}, "", kLength), ElementsAre("message incomplete"));
  EXPECT_THAT(items({}, "So it", kStop), ElementsAre("message completed"));
  EXPECT_THAT(items({}, "", kStop), ElementsAre("message completed"));
}

TEST(Responses, only_what_was_going_on_is_incomplete) {
  const TurnRules rules{.functions = {}, .reasoning = true, .starts_in_reasoning = true};
  EXPECT_THAT(items(rules, "Hm", kLength), ElementsAre("reasoning incomplete"));
  EXPECT_THAT(items(rules, "Hm</thi", kLength), ElementsAre("reasoning incomplete"));
  EXPECT_THAT(items(rules, "Hm</think>\n", kLength), ElementsAre("reasoning completed"));
  EXPECT_THAT(items(rules, "Hm</think>\nFour", kLength),
              ElementsAre("reasoning completed", "message incomplete"));
  EXPECT_THAT(items(rules, "Hm</think>\nFour", kStop),
              ElementsAre("reasoning completed", "message completed"));
  EXPECT_THAT(items(rules, "\n", kLength), ElementsAre("message incomplete"));
}

TEST(Responses, a_call_that_is_whole_is_completed_though_the_answer_is_cut_behind_it) {
  const TurnRules rules{.calls = &call_syntaxes().front(), .functions = {"now"}};
  const std::string call = R"(<tool_call>{"name": "now", "arguments": {}}</tool_call>)";
  EXPECT_THAT(items(rules, call, kLength), ElementsAre("function_call completed"));
  EXPECT_THAT(items(rules, "So: " + call, kLength),
              ElementsAre("message completed", "function_call completed"));
}

}  // namespace
}  // namespace lockstep
