// A message, whole and built from its events, by how its text ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/anthropic/messages_answer.h"

namespace lockstep {
namespace {

Output output_of(std::string text, std::optional<FinishReason> finish = std::nullopt) {
  Output output;
  output.text = std::move(text);
  output.finish = finish;
  output.generated_tokens = 4;
  return output;
}

// The data of the events, in order.
std::vector<Json> events_of(std::string_view stream) {
  std::vector<Json> events;
  constexpr std::string_view kData = "\ndata: ";
  for (size_t at = stream.find(kData); at != std::string_view::npos; at = stream.find(kData, at)) {
    at += kData.size();
    events.push_back(*parse_json(stream.substr(at, stream.find("\n\n", at) - at)));
  }
  return events;
}

// The message that the events build, as a client puts it together.
Json build(const std::vector<Json>& events) {
  Json message = events.front()["message"];
  std::string input;
  for (const Json& event : events) {
    const std::string type = event["type"].get<std::string>();
    if (type == "content_block_start") message["content"].push_back(event["content_block"]);
    if (type == "content_block_delta") {
      Json& block = message["content"].back();
      for (const char* const name : {"text", "thinking"}) {
        if (!event["delta"].contains(name)) continue;
        block[name] = block[name].get<std::string>() + event["delta"][name].get<std::string>();
      }
      if (event["delta"].contains("partial_json")) {
        input += event["delta"]["partial_json"].get<std::string>();
        if (const auto whole = parse_json(input)) block["input"] = *whole;
      }
    }
    if (type == "message_delta") {
      message.update(event["delta"]);
      message["usage"] = event["usage"];
    }
  }
  return message;
}

// The message of an answer with this text, the same whole and streamed byte by byte but for ids.
Json message_of(const TurnRules& rules, std::string_view text, FinishReason finish,
                uint32_t max_tokens = 4) {
  const AnswerUsage usage{.prompt_tokens = 5, .cached_tokens = 2, .generated_tokens = 4};
  const AnthropicHead head = anthropic_head("m", max_tokens);
  MessagesBody whole(rules, head);
  Json body = *parse_json(whole.body({output_of(std::string(text), finish)}, usage));
  MessagesStream writer(rules, head);
  std::string stream = writer.opening(usage);
  for (const char byte : text) stream += writer.news(0, output_of({byte}));
  stream += writer.news(0, output_of("", finish));
  stream += writer.ending(usage);
  Json built = build(events_of(stream));
  for (Json* message : {&body, &built}) {
    for (Json& block : (*message)["content"]) {
      if (block.contains("id")) block["id"] = "toolu_";
    }
  }
  EXPECT_EQ(built, body) << stream;
  return body;
}

constexpr auto kStop = FinishReason::kStop;
constexpr auto kLength = FinishReason::kLength;

TEST(Messages, the_reason_to_stop_is_the_same_whole_and_streamed) {
  EXPECT_EQ(message_of({}, "So it", kStop)["stop_reason"], "end_turn");
  EXPECT_EQ(message_of({}, "So it", kLength)["stop_reason"], "max_tokens");
  EXPECT_EQ(message_of({}, "So it", kLength, 9)["stop_reason"], "model_context_window_exceeded");
}

TEST(Messages, an_answer_of_nothing_is_an_empty_text) {
  EXPECT_EQ(message_of({}, "", kStop)["content"], Json::array({{{"type", "text"}, {"text", ""}}}));
}

TEST(Messages, tokens_of_the_cache_are_counted_apart_from_the_input) {
  const Json usage = message_of({}, "So", kStop)["usage"];
  EXPECT_EQ(usage["input_tokens"], 3);
  EXPECT_EQ(usage["cache_read_input_tokens"], 2);
  EXPECT_EQ(usage["output_tokens"], 4);
}

TEST(Messages, reasoning_and_a_call_are_blocks_of_their_own) {
  const TurnRules rules{.calls = &call_syntaxes().front(),
                        .functions = {"now"},
                        .reasoning = true,
                        .starts_in_reasoning = true};
  const Json message = message_of(
      rules, R"(Hm</think><tool_call>{"name": "now", "arguments": {"a":1}}</tool_call>)", kStop);
  ASSERT_EQ(message["content"].size(), 2U) << message;
  EXPECT_EQ(message["content"][0]["thinking"], "Hm");
  EXPECT_EQ(message["content"][1]["input"], Json({{"a", 1}}));
  EXPECT_EQ(message["stop_reason"], "tool_use");
}

}  // namespace
}  // namespace lockstep
