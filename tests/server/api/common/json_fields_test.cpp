#include "server/api/common/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int64_t kSmall = 10;

Json object(std::string_view text) {
  return *parse_json(text);
}

// The outcome of a getter on {"x": value}: the value as text, "unset", or "refused".
template <typename Getter>
std::string outcome(std::string_view value, Getter getter) {
  const Json body = object(fmt::format("{{\"x\": {}}}", value));
  JsonFields fields(body);
  const auto result = getter(fields);
  if (fields.error()) {
    EXPECT_EQ(fields.error()->parameter, "x");
    EXPECT_EQ(fields.error()->status, 400);
    EXPECT_EQ(fields.error()->type, "invalid_request_error");
    EXPECT_THAT(fields.error()->message, HasSubstr("'x'"));
    EXPECT_FALSE(result);
    return "refused";
  }
  return result ? to_text(Json(*result)) : "unset";
}

std::string integer(std::string_view value) {
  return outcome(value, [](JsonFields& fields) { return fields.integer("x", 0, kSmall); });
}

std::string number(std::string_view value) {
  return outcome(value, [](JsonFields& fields) { return fields.number("x", 0, 2); });
}

TEST(JsonFields, an_integer_is_exact_and_in_range) {
  EXPECT_EQ(integer("0"), "0");
  EXPECT_EQ(integer("10"), "10");
  EXPECT_EQ(integer("-0"), "0");
  EXPECT_EQ(integer("null"), "unset");
  for (const std::string_view value :
       {"-1", "11", "5.0", "5e0", "1.5", "true", "false", "\"5\"", "[5]", "{}", "[]", "\"\"",
        "9223372036854775808", "18446744073709551615", "18446744073709551621", "1e300"}) {
    EXPECT_EQ(integer(value), "refused") << value;
  }
}

TEST(JsonFields, the_whole_range_of_int64_is_taken) {
  const auto whole = [](JsonFields& fields) { return fields.integer("x", INT64_MIN, INT64_MAX); };
  EXPECT_EQ(outcome("-9223372036854775808", whole), "-9223372036854775808");
  EXPECT_EQ(outcome("9223372036854775807", whole), "9223372036854775807");
  EXPECT_EQ(outcome("9223372036854775808", whole), "refused");
  EXPECT_EQ(outcome("-9223372036854775809", whole), "refused");
}

TEST(JsonFields, a_number_may_be_written_as_an_integer) {
  EXPECT_EQ(number("1"), "1.0");
  EXPECT_EQ(number("0.5"), "0.5");
  EXPECT_EQ(number("2"), "2.0");
  EXPECT_EQ(number("5e-1"), "0.5");
  EXPECT_EQ(number("null"), "unset");
  for (const std::string_view value :
       {"-0.001", "2.0001", "1e300", "true", "\"1\"", "\"NaN\"", "[]", "{}"}) {
    EXPECT_EQ(number(value), "refused") << value;
  }
}

TEST(JsonFields, booleans_and_strings_are_never_coerced) {
  const auto boolean = [](JsonFields& fields) { return fields.boolean("x"); };
  EXPECT_EQ(outcome("true", boolean), "true");
  EXPECT_EQ(outcome("false", boolean), "false");
  EXPECT_EQ(outcome("null", boolean), "unset");
  for (const std::string_view value : {"0", "1", "\"true\"", "[]", "{}"}) {
    EXPECT_EQ(outcome(value, boolean), "refused") << value;
  }
  const auto text = [](JsonFields& fields) { return fields.text("x"); };
  EXPECT_EQ(outcome("\"\"", text), "\"\"");
  EXPECT_EQ(outcome("null", text), "unset");
  for (const std::string_view value : {"0", "true", "[\"a\"]", "{}"}) {
    EXPECT_EQ(outcome(value, text), "refused") << value;
  }
}

TEST(JsonFields, an_absent_field_is_unset_and_an_unknown_one_is_ignored) {
  const Json body = object(R"({"unknown": [1, {"deep": null}]})");
  JsonFields fields(body);
  EXPECT_FALSE(fields.integer("x", 0, 1));
  EXPECT_EQ(fields.array("x"), nullptr);
  EXPECT_EQ(fields.object("x"), nullptr);
  EXPECT_FALSE(fields.error());
}

TEST(JsonFields, the_first_error_stays) {
  const Json body = object(R"({"a": 1, "b": 2})");
  JsonFields fields(body, "outer.");
  EXPECT_FALSE(fields.text("a"));
  EXPECT_FALSE(fields.text("b"));
  EXPECT_EQ(fields.error()->parameter, "outer.a");
}

TEST(JsonFields, unsupported_fields_are_refused_only_when_they_ask_for_something) {
  for (const std::string_view value : {"null", "false", "\"\"", "[]", "{}"}) {
    const Json body = object(fmt::format("{{\"x\": {}}}", value));
    JsonFields fields(body);
    fields.refuse_unsupported("x");
    EXPECT_FALSE(fields.error()) << value;
  }
  for (const std::string_view value : {"true", "0", "\"a\"", "[1]", "{\"a\":1}"}) {
    const Json body = object(fmt::format("{{\"x\": {}}}", value));
    JsonFields fields(body);
    fields.refuse_unsupported("x");
    ASSERT_TRUE(fields.error()) << value;
    EXPECT_EQ(fields.error()->parameter, "x");
  }
}

HttpRequest post(std::string type, std::string body) {
  HttpRequest request;
  request.method = "POST";
  if (!type.empty()) request.headers.emplace("content-type", std::move(type));
  request.body = std::move(body);
  return request;
}

TEST(JsonFields, a_body_must_say_that_it_is_json) {
  for (const std::string type :
       {"application/json", "Application/JSON; charset=utf-8", "application/json ;charset=UTF-8"}) {
    EXPECT_TRUE(parse_body(post(type, "{}"))) << type;
  }
  for (const std::string type :
       {"", "text/plain", "application/jsonp", "application/x-www-form-urlencoded", "application",
        "text/application/json"}) {
    const auto body = parse_body(post(type, "{}"));
    ASSERT_FALSE(body) << type;
    EXPECT_EQ(body.error().status, 415) << type;
  }
}

TEST(JsonFields, a_body_must_be_an_object) {
  for (const std::string text : {"", "[]", "1", "null", "\"a\"", "{", "{\"a\":\"\xff\"}"}) {
    const auto body = parse_body(post("application/json", text));
    ASSERT_FALSE(body) << text;
    EXPECT_EQ(body.error().status, 400) << text;
  }
}

TEST(JsonFields, a_token_id_is_an_integer_of_the_vocabulary) {
  EXPECT_EQ(token_id(Json(0), 3), 0);
  EXPECT_EQ(token_id(Json(2), 3), 2);
  for (const Json& value : {Json(3), Json(-1), Json(1.0), Json(true), Json("1"), Json(),
                            Json(4294967296), Json(UINT64_MAX)}) {
    EXPECT_FALSE(token_id(value, 3)) << to_text(value);
  }
}

}  // namespace
}  // namespace lockstep
