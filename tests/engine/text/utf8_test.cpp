#include "engine/text/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>

#include "tests/engine/text/random_text.h"

namespace lockstep {
namespace {

TEST(Utf8, every_scalar_value_is_written_and_read_back) {
  for (uint32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
    std::string text;
    append_utf8(code_point, text);
    const DecodedCharacter character = decode_utf8(text);
    ASSERT_TRUE(character.valid) << code_point;
    ASSERT_EQ(character.code_point, code_point);
    ASSERT_EQ(character.size_bytes, text.size());
    // Any beginning of it is unfinished.
    for (size_t size = 0; size < text.size(); ++size) {
      ASSERT_EQ(complete_utf8_length(std::string_view(text).substr(0, size)), 0U) << code_point;
    }
    ASSERT_EQ(complete_utf8_length(text), text.size());
  }
}

TEST(Utf8, what_is_no_scalar_value_is_written_as_the_replacement) {
  for (const uint32_t code_point : {0xD800U, 0xDFFFU, 0x110000U, UINT32_MAX}) {
    std::string text;
    append_utf8(code_point, text);
    EXPECT_EQ(text, "\uFFFD");
  }
}

// The examples of the Unicode standard, tables 3-8 to 3-11: U+FFFD per maximal invalid part.
TEST(Utf8, invalid_parts_are_replaced_as_the_standard_shows) {
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\x41");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\x41");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\x41\uFFFD\uFFFD\x42");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\x41");
}

TEST(Utf8, validity_is_as_the_rfc_says) {
  for (const char* valid : {"", "a", "\u0080", "\u07FF", "\u0800", "\uD7FF", "\uE000", "\uFFFF",
                            "\U00010000", "\U0010FFFF"}) {
    EXPECT_TRUE(is_valid_utf8(valid)) << valid;
  }
  for (const char* invalid :
       {"\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80", "\xC3", "a\xE2\x82"}) {
    EXPECT_FALSE(is_valid_utf8(invalid));
  }
}

TEST(Utf8, replacing_gives_valid_text_and_leaves_valid_text_alone) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    const std::string bytes = random_mixture(random, 10);
    const std::string replaced = replace_invalid_utf8(bytes);
    ASSERT_TRUE(is_valid_utf8(replaced)) << "round " << round;
    ASSERT_EQ(is_valid_utf8(bytes), replaced == bytes) << "round " << round;
    ASSERT_GE(complete_utf8_length(bytes) + 3, bytes.size());
  }
}

TEST(Utf8, only_what_may_still_become_a_character_is_unfinished) {
  EXPECT_EQ(complete_utf8_length("ab\xF0\x9F\x98"), 2U);
  EXPECT_EQ(complete_utf8_length("ab\xF0\x8F"), 4U);  // overlong: never valid
  EXPECT_EQ(complete_utf8_length("ab\xED\xA0"), 4U);  // a surrogate
  EXPECT_EQ(complete_utf8_length("ab\x80\x80"), 4U);  // no beginning
  EXPECT_EQ(complete_utf8_length("ab\xC3\xA9\xE2"), 4U);
  EXPECT_EQ(complete_utf8_length("\xF5"), 1U);
}

}  // namespace
}  // namespace lockstep
