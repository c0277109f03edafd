#include <gtest/gtest.h>

#include <vector>

#include "server/api/common/reasoning_count.h"
#include "server/api/common/turn_parser.h"
#include "server/api/common/turn_syntax.h"

namespace lockstep {
namespace {

TEST(Reasoning, opens_at_the_end_of_a_prompt_whatever_white_space_follows) {
  EXPECT_TRUE(find_open_reasoning("<think>"));
  EXPECT_TRUE(find_open_reasoning("a<|assistant|>\n<think>\n \t\r"));
  for (const std::string_view prompt :
       {"", " \n", "a", "think>", "<think> a", "<think>\n\n</think>\n\n", "</think>"}) {
    EXPECT_FALSE(find_open_reasoning(prompt)) << prompt;
  }
}

TEST(Reasoning, is_closed_and_empty_at_the_end_of_a_prompt_whatever_white_space_is_there) {
  for (const std::string_view prompt : {"a<think></think>", "<think>\n\n</think>\n\n",
                                        "<|channel>th"
                                        "ought\n<channel|>"}) {
    const ReasoningMarks* const marks = find_closed_reasoning(prompt);
    ASSERT_TRUE(marks) << prompt;
    EXPECT_NE(prompt.find(marks->open), prompt.npos);
  }
  for (const std::string_view prompt : {"", "</think>", "<think>a</think>", "<think></think> a"}) {
    EXPECT_FALSE(find_closed_reasoning(prompt)) << prompt;
  }
}

TEST(Reasoning, that_is_closed_is_empty_and_over_however_the_template_opened_it) {
  for (const char* opened : {"a<think>", "a<think>\n", "a<think>\n\n"}) {
    TracedText prompt("foreign", true);
    prompt.append(opened, false);
    EXPECT_TRUE(close_reasoning(prompt));
    EXPECT_EQ(prompt.text, "foreigna<think>\n\n</think>\n\n") << opened;
    EXPECT_EQ(prompt.foreign, std::vector<TextRange>({{0, 7}}));
    EXPECT_FALSE(close_reasoning(prompt));
  }
  TracedText plain("a \n", false);
  EXPECT_FALSE(close_reasoning(plain));
  EXPECT_EQ(plain.text, "a \n");
}

uint64_t counted(const TurnRules& rules, const std::vector<std::string>& pieces,
                 uint32_t unsaid = 0) {
  ReasoningCount count(rules);
  Output output;
  for (const std::string& piece : pieces) {
    output.tokens = {OutputToken{.token = 1, .bytes = piece, .logprob = 0, .top = {}}};
    ++output.generated_tokens;
    count.add(output);
  }
  output.tokens.clear();
  output.generated_tokens += unsaid;
  output.finish = FinishReason::kStop;
  count.add(output);
  // However many tokens come at once.
  for (const std::string& piece : pieces) {
    output.tokens.push_back(OutputToken{.token = 1, .bytes = piece, .logprob = 0, .top = {}});
  }
  ReasoningCount at_once(rules);
  at_once.add(output);
  EXPECT_EQ(at_once.tokens(), count.tokens());
  return count.tokens();
}

TEST(ReasoningCount, counts_the_tokens_up_to_the_end_of_the_reasoning_and_no_more) {
  const TurnRules opened{.functions = {}, .reasoning = true, .starts_in_reasoning = true};
  const TurnRules awaited{.functions = {}, .reasoning = true};
  EXPECT_EQ(counted(opened, {"H", "m.", "</", "thi", "nk>\n", "\nFour", "."}), 5U);
  EXPECT_EQ(counted(opened, {"H", "m.", "", "</think>", "Four", "</think>"}), 4U);
  EXPECT_EQ(counted(awaited, {" ", "<thi", "nk>", "Hm", "</think>", "Four", ""}), 5U);
  EXPECT_EQ(counted(awaited, {"<think>", "</think>"}), 2U);
}

TEST(ReasoningCount, all_of_reasoning_that_does_not_end_counts_also_what_a_stop_string_took) {
  const TurnRules opened{.functions = {}, .reasoning = true, .starts_in_reasoning = true};
  EXPECT_EQ(counted(opened, {"H", "m.", ""}), 3U);
  EXPECT_EQ(counted(opened, {"H", "m.", "</think"}, 2), 5U);
  EXPECT_EQ(counted(opened, {}), 0U);
}

TEST(ReasoningCount, all_reasoning_of_an_answer_of_messages_counts) {
  const CallSyntax* harmony = nullptr;
  for (const CallSyntax& row : call_syntaxes()) {
    if (row.name == "harmony") harmony = &row;
  }
  ASSERT_TRUE(harmony);
  const TurnRules rules{.functions = {}, .messages = harmony->messages};
  const std::vector<std::string> first = {"<|channel|>", "analysis", "<|message|>", "a", "<|end|>"};
  EXPECT_EQ(counted(rules, first), 4U);
  std::vector<std::string> pieces = first;
  for (const char* piece : {"<|start|>", "assistant", "<|channel|>", "commentary", "<|message|>",
                            "I", "<|end|>", "<|start|>", "assistant", "<|channel|>", "analysis"}) {
    pieces.emplace_back(piece);
  }
  EXPECT_EQ(counted(rules, pieces), 4U);
  for (const char* piece : {"<|message|>", "b", "c"}) pieces.emplace_back(piece);
  EXPECT_EQ(counted(rules, pieces), 7U);
  EXPECT_EQ(counted(rules, pieces, 2), 9U);
}

TEST(ReasoningCount, what_is_said_before_the_first_reasoning_of_messages_does_not_count) {
  const CallSyntax* harmony = nullptr;
  for (const CallSyntax& row : call_syntaxes()) {
    if (row.name == "harmony") harmony = &row;
  }
  ASSERT_TRUE(harmony);
  const TurnRules rules{.functions = {}, .messages = harmony->messages};
  const std::vector<std::string> said = {"<|channel|>", "commentary", "<|message|>", "I look",
                                         " it up.",     "<|end|>",    "<|start|>",   "assistant",
                                         "<|channel|>", "analysis",   "<|message|>"};
  std::vector<std::string> pieces = said;
  pieces.insert(pieces.end(), {"a", "b"});
  EXPECT_EQ(counted(rules, pieces), 3U);  // the head's end, and two
  EXPECT_EQ(counted(rules, {said.begin(), said.begin() + 6}), 0U);
}

TEST(ReasoningCount, is_nothing_without_reasoning) {
  EXPECT_EQ(counted({.functions = {}, .reasoning = true}, {"Four", "<think>", "</think>"}, 1), 0U);
  EXPECT_EQ(counted({.functions = {}, .reasoning = true}, {"<thi", "s>", "</think>"}), 0U);
  EXPECT_EQ(counted({.functions = {}, .reasoning = true}, {" ", "<thi"}, 2), 0U);
  EXPECT_EQ(counted({.functions = {}}, {"<think>", "Hm", "</think>"}), 0U);
  ReasoningCount none;
  none.add(Output{});
  EXPECT_EQ(none.tokens(), 0U);
}

}  // namespace
}  // namespace lockstep
