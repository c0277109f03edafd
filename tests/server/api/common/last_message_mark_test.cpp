#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/common/chat_request.h"

namespace lockstep {
namespace {

std::string content(const Json& message) {
  return message["content"].get<std::string>();
}

// As `{{ content | trim }}` does.
std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \n\t\r\f\v";
  const size_t first = text.find_first_not_of(kSpace);
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// The rest of a prompt that ends with this content, by a template that trims or does not.
std::string cut(const std::string& given, bool trims, const std::string& before = "user: a\n") {
  Json message = {{"role", "assistant"}, {"content", given}};
  mark_content_end(message);
  TracedText prompt(before, false);
  prompt.append(trims ? trimmed(content(message)) : content(message), true);
  prompt.append("<|im_end|>\n", false);
  EXPECT_TRUE(cut_at_mark(prompt));
  EXPECT_TRUE(prompt.text.starts_with(before)) << prompt.text;
  EXPECT_THAT(prompt.foreign, testing::ElementsAre(TextRange{before.size(), prompt.text.size()}));
  return prompt.text.substr(before.size());
}

TEST(LastMessageMark, a_prompt_ends_with_the_content_as_the_template_has_written_it) {
  for (const char* given : {"b", "so it", "b\n", " b ", "b \n\n", "ünï\n"}) {
    EXPECT_EQ(cut(given, false), given);
    EXPECT_EQ(cut(given, true), trimmed(given));
  }
}

TEST(LastMessageMark, what_stands_elsewhere_too_is_not_taken_for_the_contents_end) {
  // Parts of what the template writes behind it.
  for (const char* given : {"<", "|", "im_end", "<|im_end|>\n", "\n>"}) {
    EXPECT_EQ(cut(given, false), given);
  }
  // Said before, also with the white space that is trimmed here.
  EXPECT_EQ(cut("b\n", true, "user: b\n"), "b");
  Json message = {{"content", "b"}};
  mark_content_end(message);
  EXPECT_EQ(cut("b", false, "user: " + content(message)), "b");
}

TEST(LastMessageMark, content_whose_end_is_not_written_is_no_place_to_go_on) {
  // The content stands in the text, but it is not the last message's.
  TracedText prompt("user: so it\nassistant: SO<|im_end|>\n", false);
  const std::string before = prompt.text;
  EXPECT_FALSE(cut_at_mark(prompt));
  EXPECT_EQ(prompt.text, before);
  prompt = {};
  EXPECT_FALSE(cut_at_mark(prompt));
}

}  // namespace
}  // namespace lockstep
