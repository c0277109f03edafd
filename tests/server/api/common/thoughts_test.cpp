#include "server/api/common/thoughts.h"

#include <gtest/gtest.h>

#include <vector>

#include "server/api/common/thought_count.h"

namespace lockstep {
namespace {

TEST(Thoughts, open_at_the_end_of_a_prompt_whatever_white_space_follows) {
  EXPECT_TRUE(ends_in_thoughts("<think>"));
  EXPECT_TRUE(ends_in_thoughts("a<|assistant|>\n<think>\n \t\r"));
  for (const std::string_view prompt :
       {"", " \n", "a", "think>", "<think> a", "<think>\n\n</think>\n\n", "</think>"}) {
    EXPECT_FALSE(ends_in_thoughts(prompt)) << prompt;
  }
}

TEST(Thoughts, that_are_closed_are_empty_and_over_however_the_template_opened_them) {
  for (const char* opened : {"a<think>", "a<think>\n", "a<think>\n\n"}) {
    TracedText prompt("foreign", true);
    prompt.append(opened, false);
    EXPECT_TRUE(close_thoughts(prompt));
    EXPECT_EQ(prompt.text, "foreigna<think>\n\n</think>\n\n") << opened;
    EXPECT_EQ(prompt.foreign, std::vector<TextRange>({{0, 7}}));
    EXPECT_FALSE(close_thoughts(prompt));
  }
  TracedText plain("a \n", false);
  EXPECT_FALSE(close_thoughts(plain));
  EXPECT_EQ(plain.text, "a \n");
}

uint64_t counted(const TurnRules& rules, const std::vector<std::string>& pieces,
                 uint32_t unsaid = 0) {
  ThoughtCount count(rules);
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
  ThoughtCount at_once(rules);
  at_once.add(output);
  EXPECT_EQ(at_once.tokens(), count.tokens());
  return count.tokens();
}

TEST(ThoughtCount, counts_the_tokens_up_to_the_end_of_the_thoughts_and_no_more) {
  const TurnRules opened{.functions = {}, .reasoning = true, .starts_in_reasoning = true};
  const TurnRules awaited{.functions = {}, .reasoning = true};
  EXPECT_EQ(counted(opened, {"H", "m.", "</", "thi", "nk>\n", "\nFour", "."}), 5U);
  EXPECT_EQ(counted(opened, {"H", "m.", "", "</think>", "Four", "</think>"}), 4U);
  EXPECT_EQ(counted(awaited, {" ", "<thi", "nk>", "Hm", "</think>", "Four", ""}), 5U);
  EXPECT_EQ(counted(awaited, {"<think>", "</think>"}), 2U);
}

TEST(ThoughtCount, all_of_thoughts_that_do_not_end_counts_also_what_a_stop_string_took) {
  const TurnRules opened{.functions = {}, .reasoning = true, .starts_in_reasoning = true};
  EXPECT_EQ(counted(opened, {"H", "m.", ""}), 3U);
  EXPECT_EQ(counted(opened, {"H", "m.", "</think"}, 2), 5U);
  EXPECT_EQ(counted(opened, {}), 0U);
}

TEST(ThoughtCount, is_nothing_without_thoughts) {
  EXPECT_EQ(counted({.functions = {}, .reasoning = true}, {"Four", "<think>", "</think>"}, 1), 0U);
  EXPECT_EQ(counted({.functions = {}, .reasoning = true}, {"<thi", "s>", "</think>"}), 0U);
  EXPECT_EQ(counted({.functions = {}, .reasoning = true}, {" ", "<thi"}, 2), 0U);
  EXPECT_EQ(counted({.functions = {}}, {"<think>", "Hm", "</think>"}), 0U);
  ThoughtCount none;
  none.add(Output{});
  EXPECT_EQ(none.tokens(), 0U);
}

}  // namespace
}  // namespace lockstep
