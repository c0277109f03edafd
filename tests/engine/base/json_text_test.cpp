#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/json.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string error_of(std::string_view text, const JsonLimits& limits = {}) {
  const auto value = parse_json(text, limits);
  return value ? "" : value.error().message;
}

TEST(JsonText, keeps_values_and_the_order_of_names) {
  const auto value = parse_json(R"({"b":[1,-2,3.5,true,null,"é\u00e9"],"a":{"c":{}}})");
  ASSERT_TRUE(value) << value.error().message;
  EXPECT_EQ(to_text(*value), R"({"b":[1,-2,3.5,true,null,"éé"],"a":{"c":{}}})");
}

TEST(JsonText, refuses_everything_that_is_not_one_value) {
  for (const std::string_view text :
       {"",         " ",     "{",   "}",   "{\"a\":1}x", "{\"a\":1}{}", "[1,]",
        "{\"a\":}", "{a:1}", "'a'", "NaN", "Infinity",   "01",          "+1",
        ".5",       "1.",    "0x1", "tru", "\"\n\"",     "\"\\x\"",     "// c\n1"}) {
    EXPECT_THAT(error_of(text), HasSubstr("not valid JSON")) << text;
  }
}

TEST(JsonText, refuses_bytes_that_are_not_utf8) {
  for (const std::string_view text :
       {"\"\xff\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\"",
        "\"\\ud800\"", "\"\\udc00\""}) {
    EXPECT_THAT(error_of(text), HasSubstr("not valid JSON")) << text;
  }
}

TEST(JsonText, refuses_a_name_that_is_there_twice) {
  EXPECT_THAT(error_of(R"({"a":1,"b":{"a":1,"a":2}})"), HasSubstr("\"a\" is there twice"));
  EXPECT_EQ(error_of(R"([{"a":1},{"a":2}])"), "");
}

TEST(JsonText, refuses_numbers_that_no_double_holds) {
  EXPECT_NE(error_of("1e999"), "");
  EXPECT_NE(error_of("-1e999"), "");
}

TEST(JsonText, depth_is_bounded_exactly) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(error_of(nested(64)), "");
  EXPECT_THAT(error_of(nested(65)), HasSubstr("64 levels"));
  EXPECT_THAT(error_of(nested(65)), Not(HasSubstr("not valid")));
  EXPECT_THAT(error_of(std::string(1'000'000, '[')), HasSubstr("64 levels"));
}

TEST(JsonText, the_number_of_values_is_bounded_exactly) {
  const JsonLimits limits{.values = 4};
  EXPECT_EQ(error_of("[1,2,3]", limits), "");
  EXPECT_THAT(error_of("[1,2,3,4]", limits), HasSubstr("more than 4 values"));
}

TEST(JsonText, integers_keep_their_kind_and_all_their_digits) {
  EXPECT_TRUE(parse_json("9223372036854775807")->is_number_integer());
  EXPECT_EQ(parse_json("-9223372036854775808")->get<int64_t>(), INT64_MIN);
  EXPECT_TRUE(parse_json("18446744073709551615")->is_number_unsigned());
  EXPECT_TRUE(parse_json("18446744073709551616")->is_number_float());
  EXPECT_TRUE(parse_json("5.0")->is_number_float());
  EXPECT_TRUE(parse_json("5e0")->is_number_float());
}

TEST(JsonText, writes_bad_utf8_as_replacement_characters) {
  EXPECT_EQ(to_text(Json("a\xff"
                         "b")),
            "\"a\xef\xbf\xbd"
            "b\"");
}

}  // namespace
}  // namespace lockstep
