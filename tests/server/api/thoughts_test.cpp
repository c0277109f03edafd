#include "server/api/thoughts.h"

#include <gtest/gtest.h>

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
    std::string prompt = opened;
    EXPECT_TRUE(close_thoughts(prompt));
    EXPECT_EQ(prompt, "a<think>\n\n</think>\n\n") << opened;
    EXPECT_FALSE(close_thoughts(prompt));
  }
  std::string plain = "a \n";
  EXPECT_FALSE(close_thoughts(plain));
  EXPECT_EQ(plain, "a \n");
}

}  // namespace
}  // namespace lockstep
