// Earlier calls as text, for templates that do not write them: what is written is read again.
#include <gtest/gtest.h>

#include <string>

#include "server/api/common/tool_use.h"
#include "server/api/common/turn_parser.h"

namespace lockstep {
namespace {

constexpr std::string_view kSecret = "lockstep:calls:0123";

Json conversation() {
  const Json arguments =
      parse_json(R"({"a": "it's \"so\"\n", "b": [true, null, -1.5], "c": {"d": "é\\"}})").value();
  Json messages = Json::array();
  messages.push_back({{"role", "user"}, {"content", "?"}});
  messages.push_back({{"role", "assistant"},
                      {"content", "I look. "},
                      {"tool_calls", Json::array({template_call("1", "now", Json::object()),
                                                  template_call("2", "get_weather", arguments)})}});
  messages.push_back({{"role", "tool"}, {"content", "noon"}, {"tool_call_id", "1"}});
  return messages;
}

TEST(CallText, is_read_as_the_calls_that_it_was_made_of) {
  size_t families = 0;
  for (const CallSyntax& row : call_syntaxes()) {
    if (row.tool_signs.front().empty()) continue;
    ++families;
    Json messages = conversation();
    write_calls(row, kSecret, messages);
    ASSERT_FALSE(messages[1].contains("tool_calls"));
    TracedText text(messages[1]["content"].get<std::string>(), /*is_foreign=*/true);
    put_call_marks(row, kSecret, text);
    // The marks are the server's own words, and nothing else is.
    ASSERT_EQ(text.foreign.size(), row.separator.empty() ? 4U : 2U) << text.text;
    for (const TextRange& range : text.foreign) {
      const std::string own = text.text.substr(range.begin, range.end - range.begin);
      EXPECT_EQ(own.find(row.open), std::string::npos) << text.text;
    }
    EXPECT_EQ(text.text.substr(text.foreign.back().end),
              std::string(row.line) + std::string(row.close));
    const Turn turn = read_turn(
        {.calls = &row, .functions = {"now", "get_weather"}, .parameters = nullptr}, text.text);
    EXPECT_EQ(turn.text, "I look.") << text.text;
    ASSERT_EQ(turn.calls.size(), 2U) << text.text;
    EXPECT_EQ(turn.calls[0].name, "now");
    EXPECT_EQ(parse_json(turn.calls[1].arguments).value(),
              conversation()[1]["tool_calls"][1]["function"]["arguments"]);
  }
  EXPECT_EQ(families, 3U);
}

TEST(CallText, leaves_texts_without_calls_as_they_are) {
  Json messages = Json::array({{{"role", "assistant"}, {"content", "<|tool_call|>[]"}}});
  const Json before = messages;
  write_calls(call_syntaxes().front(), kSecret, messages);
  EXPECT_EQ(messages, before);
  TracedText text("<|tool_call|>", /*is_foreign=*/true);
  put_call_marks(call_syntaxes().front(), kSecret, text);
  EXPECT_EQ(text.text, "<|tool_call|>");
  EXPECT_TRUE(text.is_foreign());
}

}  // namespace
}  // namespace lockstep
