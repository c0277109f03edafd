#include "server/http/request_head.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep {
namespace {

const HttpLimits kLimits;

std::string head_with(const std::string& lines) {
  return "POST /a?b HTTP/1.1\r\nHost: h\r\n" + lines + "\r\n";
}

TEST(RequestHead, method_target_and_fields_are_read) {
  const auto head =
      parse_request_head(head_with("X-A:  one \t\r\nx-a: two\r\nEmpty:\r\n"), kLimits);
  ASSERT_TRUE(head);
  EXPECT_EQ(head->method, "POST");
  EXPECT_EQ(head->target.path, "/a");
  EXPECT_EQ(head->target.query, "b");
  EXPECT_EQ(head->minor_version, 1);
  EXPECT_EQ(head->field("x-a"), "one");
  EXPECT_EQ(head->fields.count("x-a"), 2U);
  EXPECT_EQ(head->field("empty"), "");
  EXPECT_EQ(head->field("missing"), "");
  EXPECT_FALSE(head->has_body());
}

TEST(RequestHead, body_framing_is_read) {
  EXPECT_EQ(parse_request_head(head_with("Content-Length: 007\r\n"), kLimits)->content_length, 7U);
  EXPECT_TRUE(parse_request_head(head_with("Transfer-Encoding: Chunked\r\n"), kLimits)->is_chunked);
}

TEST(RequestHead, keep_alive_follows_version_and_connection) {
  const auto kept = [](const std::string& version, const std::string& lines) {
    return parse_request_head("GET / HTTP/" + version + "\r\nHost: h\r\n" + lines + "\r\n", kLimits)
        ->keep_alive;
  };
  EXPECT_TRUE(kept("1.1", ""));
  EXPECT_FALSE(kept("1.1", "Connection: close\r\n"));
  EXPECT_FALSE(kept("1.1", "Connection: x\r\nConnection: keep-alive , CLOSE\r\n"));
  EXPECT_FALSE(kept("1.0", ""));
  EXPECT_TRUE(kept("1.0", "Connection: Keep-Alive\r\n"));
}

TEST(RequestHead, every_prefix_of_a_head_asks_for_more_and_the_whole_is_found) {
  const std::string head = head_with("X: 1\r\n");
  const std::string input = head + "body";
  HeadScanner scanner(kLimits);
  for (size_t size = 0; size < head.size(); ++size) {
    const auto scanned = scanner.scan(std::string_view(input).substr(0, size));
    ASSERT_TRUE(scanned) << size;
    EXPECT_FALSE(scanned->has_value()) << size;
  }
  EXPECT_EQ(*scanner.scan(input), head.size());
  scanner.reset();
  EXPECT_EQ(*scanner.scan(input), head.size());
}

TEST(RequestHead, every_control_byte_anywhere_is_refused) {
  const std::string good = head_with("X: 1\r\n");
  for (int value = 0; value <= 0x7f; ++value) {
    const char c = static_cast<char>(value);
    if (c == '\t' || (c >= ' ' && value != 0x7f)) continue;
    for (size_t at = 0; at <= good.size(); ++at) {
      std::string bad = good;
      bad.insert(at, 1, c);
      HeadScanner scanner(kLimits);
      const auto scanned = scanner.scan(bad);
      // A byte after the head, or one that splits it at a line's end, leaves a good head or half a
      // one; what is found whole must then be free of the byte.
      if (!scanned || !*scanned) continue;
      const std::string_view found = std::string_view(bad).substr(0, **scanned);
      const bool is_good = parse_request_head(found, kLimits).has_value();
      EXPECT_TRUE(!is_good || found == good) << "byte " << value << " at " << at;
    }
  }
}

TEST(RequestHead, a_first_byte_that_no_method_has_is_refused_at_once) {
  for (const char c : {'\x16', '\x80', '\0', '\r', ' ', '('}) {
    HeadScanner scanner(kLimits);
    const auto scanned = scanner.scan(std::string_view(&c, 1));
    ASSERT_FALSE(scanned);
    EXPECT_EQ(scanned.error().status, 400);
  }
}

}  // namespace
}  // namespace lockstep
