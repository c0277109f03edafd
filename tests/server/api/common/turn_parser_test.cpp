// Turns as models of each family write them, however their text is cut.
#include "server/api/common/turn_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "engine/base/json.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using Kind = TurnEvent::Kind;

const CallSyntax& syntax(std::string_view name) {
  for (const CallSyntax& row : call_syntaxes()) {
    if (row.name == name) return row;
  }
  ADD_FAILURE() << "no syntax " << name;
  return call_syntaxes().front();
}

struct Case {
  std::string_view family;  // "": no tools
  std::string_view text;
  std::string_view said;
  std::vector<std::string> calls = {};  // "name(arguments)"
  std::string_view reasoning = "";
  bool parallel = true;
  bool reasons = false;
  bool streams_alike = true;  // false: a call that breaks off has been streamed already
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      // Qwen and Hermes.
      {"hermes", "The answer is 4.", "The answer is 4."},
      {"hermes",
       "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\"}}\n"
       "</tool_call>",
       "",
       {"get_weather({\"city\": \"Zürich\"})"}},
      {"hermes",
       "I look it up.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"a } "
       "\\\" {\", \"days\": [1, {\"x\": null}]}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", "
       "\"arguments\": {}}\n</tool_call>",
       "I look it up.",
       {"get_weather({\"city\": \"a } \\\" {\", \"days\": [1, {\"x\": null}]})", "now({})"}},
      {"hermes",
       "<tool_call>{\"arguments\": {\"city\": 1}, \"name\": \"now\"}</tool_call> Done. ",
       " Done.",
       {"now({\"city\": 1})"}},
      {"hermes", "<tool_call>{\"name\": \"now\"}</tool_call>", "", {"now({})"}},
      {"hermes",
       "<tool_call>{\"name\": \"now\", \"arguments\": null}</tool_call>",
       "",
       {"now({})"}},
      {"hermes",
       "<tool_call>{\"name\": \"now\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
       "",
       {"now({\"a\": 1})"}},
      {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {}}", "", {"now({})"}},
      {"hermes", "a < b <tool b> <tool_cal", "a < b <tool b> <tool_cal"},
      {"hermes", "  two  spaces  ", "  two  spaces  "},
      // Text that is no call stays text.
      {"hermes", "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>",
       "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>"},
      {"hermes", "<tool_call>no object</tool_call>", "<tool_call>no object</tool_call>"},
      {"hermes", "x\n<tool_call>\n{\"name\": 5, \"arguments\": {}}",
       "x\n<tool_call>\n{\"name\": 5, "
       "\"arguments\": {}}"},
      {"hermes", "<tool_call>\n{\"name\": \"no", "<tool_call>\n{\"name\": \"no"},
      {"hermes", "<tool_call>", "<tool_call>"},
      {"hermes",
       "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": oops}}</tool_call>",
       "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": oops}}</tool_call>",
       {},
       "",
       true,
       false,
       false},
      {"hermes",
       "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": [1,",
       "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": [1,",
       {},
       "",
       true,
       false,
       false},
      // One call at a time.
      {"hermes",
       "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": "
       "\"get_weather\", \"arguments\": {}}</tool_call> and more",
       "",
       {"now({})"},
       "",
       false},
      // Reasoning before an answer and before a call.
      {"", "<think>\nHm, <b>.\n</think>\n\nFour.", "Four.", {}, "Hm, <b>.", true, true},
      {"", "<think>\n\n</think>\n\nFour.\n", "Four.\n", {}, "", true, true},
      {"", "Four. <think>", "Four. <think>", {}, "", true, true},
      {"", "<think>never ends \n", "", {}, "never ends", true, true},
      {"", "<think>no</think>  ", "", {}, "no", true, true},
      {"hermes",
       "<think>\nI call.\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n"
       "</tool_call>",
       "",
       {"now({})"},
       "I call.",
       true,
       true},
      // Mistral.
      {"mistral",
       "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {\"a\": 1}}]",
       "",
       {"now({\"a\": 1})"}},
      {"mistral",
       "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}, \"id\": \"abcdefgh1\"}, {\"name\": "
       "\"get_weather\", \"arguments\": {\"city\": \"]\"}}]",
       "",
       {"now({})", "get_weather({\"city\": \"]\"})"}},
      {"mistral", "[TOOL_CALLS] none", "[TOOL_CALLS] none"},
      {"mistral", "See [1] and [TOOL].", "See [1] and [TOOL]."},
      // Llama 3.
      {"llama-3",
       "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Bern\"}}",
       "",
       {"get_weather({\"city\": \"Bern\"})"}},
      {"llama-3",
       "<|python_tag|>{\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}",
       "",
       {"now({})"}},
      {"llama-3",
       "\n{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": "
       "{\"a\": 2}}",
       "",
       {"now({})", "now({\"a\": 2})"}},
      {"llama-3", "{\"answer\": 42, \"name\": \"now\"}", "{\"answer\": 42, \"name\": \"now\"}"},
      {"llama-3", "<|python_tag|>get_weather.call(city=\"Bern\")",
       "<|python_tag|>get_weather.call(city=\"Bern\")"},
      {"llama-3", "See {\"name\": \"now\", \"parameters\": {}}",
       "See {\"name\": \"now\", \"parameters\": {}}"},
  };
  return kCases;
}

TurnRules rules_of(const Case& which) {
  return {.calls = which.family.empty() ? nullptr : &syntax(which.family),
          .functions = {"get_weather", "now"},
          .parallel = which.parallel,
          .reasoning = which.reasons};
}

// The sum of a stream's events.
struct Streamed {
  std::string said, reasoning;
  std::vector<std::string> calls;
  bool operator==(const Streamed&) const = default;
};

Streamed stream(const TurnRules& rules, const std::vector<std::string_view>& pieces) {
  TurnParser parser(rules);
  Streamed result;
  const auto take = [&](const std::vector<TurnEvent>& events) {
    for (const TurnEvent& event : events) {
      if (event.kind == Kind::kText) result.said += event.text;
      if (event.kind == Kind::kReasoning) result.reasoning += event.text;
      if (event.kind == Kind::kCall) result.calls.push_back(event.text + "(");
      if (event.kind == Kind::kArguments) result.calls.back() += event.text;
      if (event.kind == Kind::kCallEnd) result.calls.back() += event.sound ? ")" : "…";
    }
  };
  for (const std::string_view piece : pieces) take(parser.push(piece));
  take(parser.finish());
  return result;
}

TEST(TurnParser, a_whole_turn_falls_into_its_parts) {
  for (const Case& which : cases()) {
    const Turn turn = read_turn(rules_of(which), which.text);
    EXPECT_EQ(turn.text, which.said) << which.text;
    EXPECT_EQ(turn.reasoning, which.reasoning) << which.text;
    std::vector<std::string> calls;
    for (const TurnCall& call : turn.calls) {
      calls.push_back(call.name + "(" + call.arguments + ")");
      EXPECT_TRUE(parse_json(call.arguments)) << call.arguments;
    }
    EXPECT_EQ(calls, which.calls) << which.text;
  }
}

TEST(TurnParser, however_the_text_is_cut_the_events_say_the_same) {
  const uint32_t seed = 20260101;
  std::mt19937 random(seed);
  for (const Case& which : cases()) {
    const TurnRules rules = rules_of(which);
    const Streamed whole = stream(rules, {which.text});
    if (which.streams_alike) {
      EXPECT_EQ(whole.said, which.said) << which.text;
      EXPECT_EQ(whole.reasoning, which.reasoning) << which.text;
      EXPECT_EQ(whole.calls, which.calls) << which.text;
    }
    std::vector<std::string_view> bytes;
    for (size_t at = 0; at < which.text.size(); ++at) bytes.push_back(which.text.substr(at, 1));
    EXPECT_TRUE(stream(rules, bytes) == whole) << which.text;
    for (size_t at = 0; at <= which.text.size(); ++at) {
      EXPECT_TRUE(stream(rules, {which.text.substr(0, at), which.text.substr(at)}) == whole)
          << at << ": " << which.text;
    }
    for (int round = 0; round < 50; ++round) {
      std::vector<std::string_view> pieces;
      for (size_t at = 0; at < which.text.size();) {
        const size_t size = 1 + random() % 9;
        pieces.push_back(which.text.substr(at, size));
        at += size;
      }
      EXPECT_TRUE(stream(rules, pieces) == whole) << "seed " << seed << ": " << which.text;
    }
  }
}

TEST(TurnParser, arguments_come_before_they_are_complete) {
  TurnParser parser({.calls = &syntax("hermes"), .functions = {"now"}});
  EXPECT_TRUE(parser.push("<tool_call>{\"name\": \"no").empty());
  const auto begun = parser.push("w\", \"arguments\": {\"a");
  ASSERT_EQ(begun.size(), 2U);
  EXPECT_EQ(begun[0].kind, Kind::kCall);
  EXPECT_EQ(begun[1].text, "{\"a");
  const auto more = parser.push("\": \"x");
  ASSERT_EQ(more.size(), 1U);
  EXPECT_EQ(more[0].text, "\": \"x");
}

TEST(TurnParser, an_object_that_names_two_functions_is_told_alike_at_once_and_in_pieces) {
  const std::string text =
      "<tool_call>{\"name\": \"now\", \"name\": \"other\", \"arguments\": {}}</tool_call>";
  const auto told = [&](size_t piece) {
    TurnParser parser({.calls = &syntax("hermes"), .functions = {"now"}});
    std::vector<TurnEvent> events;
    for (size_t at = 0; at < text.size(); at += piece) {
      std::ranges::move(parser.push(text.substr(at, piece)), std::back_inserter(events));
    }
    std::vector<Kind> kinds;
    for (const TurnEvent& event : events) {
      EXPECT_FALSE(event.kind == Kind::kCallEnd && event.sound) << event.text;
      if (kinds.empty() || kinds.back() != event.kind) kinds.push_back(event.kind);
    }
    return kinds;
  };
  EXPECT_THAT(told(text.size()), ElementsAre(Kind::kCall, Kind::kCallEnd, Kind::kText));
  EXPECT_EQ(told(1), told(text.size()));
}

TEST(TurnParser, behind_the_name_of_no_function_calls_are_looked_for_at_once_and_in_pieces) {
  const std::string text =
      "<tool_call>{\"name\": \"other\", \"arguments\": {\"a\": \"<tool_call>{\"name\": "
      "\"now\", \"arguments\": {}}</tool_call>";
  TurnParser parser({.calls = &syntax("hermes"), .functions = {"now"}});
  size_t calls = 0;
  for (const char letter : text) {
    for (const TurnEvent& event : parser.push({&letter, 1})) {
      if (event.kind == Kind::kCallEnd && event.sound) ++calls;
    }
  }
  EXPECT_EQ(calls, 1U);
  const Turn turn = read_turn({.calls = &syntax("hermes"), .functions = {"now"}}, text);
  EXPECT_EQ(turn.calls.size(), 1U);
}

TEST(TurnParser, without_tools_text_passes_as_it_comes) {
  TurnParser parser({});
  const auto events = parser.push("  <tool_call> ");
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].text, "  <tool_call> ");
  EXPECT_TRUE(parser.finish().empty());
}

TEST(TurnParser, a_prompt_that_ended_in_reasoning_goes_on_with_it) {
  const Turn turn = read_turn({.functions = {}, .reasoning = true, .starts_in_reasoning = true},
                              "\nHm.\n</think>\n\nYes.");
  EXPECT_EQ(turn.reasoning, "Hm.");
  EXPECT_EQ(turn.text, "Yes.");
}

TEST(TurnParser, marks_around_an_answer_are_none_of_it_however_the_text_is_cut) {
  const AnswerMarks marks = {"<|START|>", "<|END|>", "<|TURN|>"};
  struct Framed {
    std::string_view text, said, reasoning;
  };
  for (const bool tools : {false, true}) {
    const TurnRules rules = {.calls = tools ? &syntax("hermes") : nullptr,
                             .functions = {"now"},
                             .reasoning = true,
                             .answer = &marks};
    for (const Framed& which : std::initializer_list<Framed>{
             {"<|START|>Four.<|END|>", "Four.", ""},
             {"<|START|>Four.<|END|><|TURN|>", "Four.", ""},
             {"<think>Hm.</think>\n<|START|> 2 <|EN 2<|END|>", " 2 <|EN 2", "Hm."},
             {"Four <|START|>.", "Four <|START|>.", ""},
             {"<|START|>Four", "Four", ""},
             {"<|STAR", "<|STAR", ""},
             {"", "", ""}}) {
      for (size_t at = 0; at <= which.text.size(); ++at) {
        const Streamed told = stream(rules, {which.text.substr(0, at), which.text.substr(at)});
        EXPECT_EQ(told.said, which.said) << at << ": " << which.text;
        EXPECT_EQ(told.reasoning, which.reasoning) << at << ": " << which.text;
      }
    }
    const std::string call = "<tool_call>{\"name\": \"now\"}</tool_call>";
    const Turn turn = read_turn(rules, "<|START|>I look.<|END|>" + call);
    EXPECT_EQ(turn.text, tools ? "I look." : "I look." + call);
    EXPECT_EQ(turn.calls.size(), tools ? 1U : 0U);
  }
}

TEST(TurnParser, any_bytes_are_taken_and_none_of_a_plain_text_is_lost) {
  const uint32_t seed = 7;
  std::mt19937 random(seed);
  constexpr std::string_view kParts[] = {"<tool_call>",
                                         "</tool_call>",
                                         "{\"name\": \"now\"",
                                         "[",
                                         "{",
                                         "}",
                                         "]",
                                         "\"arguments\": {",
                                         ",",
                                         " ",
                                         "\n",
                                         "x",
                                         "[TOOL_CALLS]",
                                         "<|python_tag|>",
                                         ";",
                                         "\\",
                                         "\"",
                                         "<think>",
                                         "</think>",
                                         "\"parameters\": "};
  for (int round = 0; round < 20'000; ++round) {
    const CallSyntax& row = call_syntaxes()[random() % call_syntaxes().size()];
    std::string text;
    for (size_t count = random() % 12; count > 0; --count) {
      text += kParts[random() % std::size(kParts)];
    }
    const TurnRules rules = {.calls = &row, .functions = {"now"}, .reasoning = random() % 2 == 0};
    const Turn turn = read_turn(rules, text);
    if (turn.calls.empty() && !rules.reasoning) {
      EXPECT_EQ(turn.text, text) << "seed " << seed << " round " << round;
    }
  }
}

TEST(CallIds, fit_the_template_and_stay_apart) {
  EXPECT_EQ(fitting_call_id(syntax("hermes"), "call_1"), "call_1");
  const std::string first = fitting_call_id(syntax("mistral"), "call_1");
  EXPECT_EQ(first.size(), 9U);
  EXPECT_EQ(fitting_call_id(syntax("mistral"), "call_1"), first);
  EXPECT_NE(fitting_call_id(syntax("mistral"), "call_2"), first);
  EXPECT_EQ(fitting_call_id(syntax("mistral"), "abcdefgh1"), "abcdefgh1");
}

}  // namespace
}  // namespace lockstep
