// Text that is kept for a value: the same value, and hardly longer than it came.
#include <gtest/gtest.h>

#include "server/api/openai/responses_request.h"

namespace lockstep {
namespace {

std::string compact(std::string_view text) {
  const auto value = parse_json(text);
  EXPECT_TRUE(value) << text;
  std::string kept;
  append_compact_text(*value, kept);
  return kept;
}

TEST(CompactText, is_the_same_value) {
  for (const std::string_view text :
       {R"({})", R"([])", R"([[],{},[[]],""])",
        R"({"a":{"b":[1,-2,null,true,false]},"c":"\"\\\n"})", R"({"a":{"":{}},"b":[]})",
        R"([1e300,-0.1,5e-324,1.7976931348623157e308,0.30000000000000004])", R"("Zürich")", "7",
        "[18446744073709551615,-9223372036854775808]"}) {
    EXPECT_EQ(*parse_json(compact(text)), *parse_json(text)) << text;
  }
}

TEST(CompactText, takes_at_most_one_and_a_half_times_what_came) {
  for (const std::string_view element :
       {"[]", "{}", "0", "1e9", "3e9", "1e15", "1E22", "0.1", "1e-5", "12345678901234567890",
        R"("\u0001")", R"("")", R"({"a":1e15})"}) {
    std::string text = "[";
    for (int count = 0; count < 1000; ++count) {
      text += count == 0 ? "" : ",";
      text += element;
    }
    text += "]";
    EXPECT_LE(compact(text).size(), text.size() * 3 / 2) << element;
  }
}

}  // namespace
}  // namespace lockstep
