// The file of API keys: what it may hold, and that keys are found by their hashes alone.
#include "server/access/api_keys.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep {
namespace {

// SHA-256 of "abc": FIPS 180-2, appendix B.1.
const std::string kAbcHash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

Result<ApiKeys> parse(std::string text) {
  return ApiKeys::parse(text, "keys.json");
}

TEST(ApiKeys, a_digest_is_sha256) {
  EXPECT_EQ(digest_text(digest_of("abc")), kAbcHash);
}

TEST(ApiKeys, a_key_is_found_by_its_hash_and_no_other_is) {
  const auto keys = parse(R"({"keys":[
    {"name":"first","sha256":")" +
                          digest_text(digest_of("another key")) + R"("},
    {"name":"abc","sha256":")" +
                          kAbcHash + R"(","requests_per_minute":3,"tokens_per_minute":4,
     "concurrent":5,"priority":-6},
    {"name":"last","key":"a key in plain text"}]})");
  ASSERT_TRUE(keys.has_value()) << keys.error().message;
  const KeyOwner* owner = keys->find("abc");
  ASSERT_NE(owner, nullptr);
  EXPECT_EQ(owner->name, "abc");
  EXPECT_EQ(owner->allowance.requests_per_minute, 3U);
  EXPECT_EQ(owner->allowance.tokens_per_minute, 4U);
  EXPECT_EQ(owner->allowance.concurrent, 5U);
  EXPECT_EQ(owner->allowance.priority, -6);
  EXPECT_EQ(keys->find("another key")->name, "first");
  EXPECT_EQ(keys->find("a key in plain text")->name, "last");
  for (const std::string wrong : {"", "ab", "abcd", "ABC", "a key in plain tex", "abc "}) {
    EXPECT_EQ(keys->find(wrong), nullptr) << wrong;
  }
  // Reading the file gives nobody a key.
  EXPECT_EQ(keys->find(kAbcHash), nullptr);
}

TEST(ApiKeys, an_owner_may_have_several_keys_so_that_they_can_be_changed) {
  const auto keys = parse(R"({"keys":[{"name":"a","sha256":[")" + kAbcHash + R"(",")" +
                          digest_text(digest_of("next")) + R"("]}]})");
  ASSERT_TRUE(keys.has_value());
  EXPECT_EQ(keys->find("abc"), keys->find("next"));
  EXPECT_NE(keys->find("abc"), nullptr);
}

TEST(ApiKeys, text_with_keys_is_wiped) {
  std::string text = R"({"keys":[{"name":"a","key":"a key in plain text"}]})";
  ASSERT_TRUE(ApiKeys::parse(text, "keys.json").has_value());
  EXPECT_EQ(text.find("plain"), std::string::npos);
}

TEST(ApiKeys, a_file_without_rows_lets_nobody_in) {
  const auto keys = parse(R"({"keys":[]})");
  ASSERT_TRUE(keys.has_value());
  EXPECT_EQ(keys->find(""), nullptr);
}

TEST(ApiKeys, what_is_wrong_is_named_with_its_row) {
  const std::string good = R"({"name":"a","sha256":")" + kAbcHash + R"("})";
  const std::pair<std::string, std::string> cases[] = {
      {"", "keys.json"},
      {"[]", "keys"},
      {R"({"keys":{}})", "keys"},
      {R"({"keys":[],"more":1})", "keys"},
      {R"({"keys":[1]})", "row 1"},
      {R"({"keys":[)" + good + R"(,{"name":"b"}]})", "row 2"},
      {R"({"keys":[{"name":"","sha256":")" + kAbcHash + R"("}]})", "name"},
      {R"({"keys":[{"name":"a b","sha256":")" + kAbcHash + R"("}]})", "name"},
      {R"({"keys":[{"name":"a","sha256":"ba78"}]})", "64 hexadecimal"},
      {R"({"keys":[{"name":"a","sha256":7}]})", "64 hexadecimal"},
      {R"({"keys":[{"name":"a","sha256":[]}]})", "without any hash"},
      {R"({"keys":[{"name":"a","key":"short"}]})", "16 bytes"},
      {R"({"keys":[{"name":"a","key":"a key in plain text","sha256":")" + kAbcHash + R"("}]})",
       "one of them"},
      {R"({"keys":[{"name":"a","sha256":")" + kAbcHash + R"(","concurrent":-1}]})", "concurrent"},
      {R"({"keys":[{"name":"a","sha256":")" + kAbcHash + R"(","tokens_per_minute":1.5}]})",
       "tokens_per_minute"},
      {R"({"keys":[{"name":"a","sha256":")" + kAbcHash + R"(","request_per_minute":1}]})",
       "request_per_minute"},
      {R"({"keys":[)" + good + "," + good + "]}", "two rows"},
  };
  for (const auto& [text, expected] : cases) {
    const auto keys = parse(text);
    ASSERT_FALSE(keys.has_value()) << text;
    EXPECT_EQ(keys.error().kind, ErrorKind::kInvalidInput);
    EXPECT_NE(keys.error().message.find(expected), std::string::npos) << keys.error().message;
    EXPECT_EQ(keys.error().message.find("plain"), std::string::npos) << keys.error().message;
  }
}

}  // namespace
}  // namespace lockstep
