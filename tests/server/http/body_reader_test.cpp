#include "server/http/body_reader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

namespace lockstep {
namespace {

RequestHead chunked_head() {
  RequestHead head;
  head.is_chunked = true;
  return head;
}

RequestHead head_with_length(uint64_t length) {
  RequestHead head;
  head.content_length = length;
  return head;
}

TEST(BodyReader, a_body_of_no_length_is_whole_at_once) {
  BodyReader reader;
  ASSERT_TRUE(reader.begin(head_with_length(0), 10));
  EXPECT_TRUE(reader.is_whole());
  EXPECT_EQ(*reader.consume("next"), 0U);
}

TEST(BodyReader, only_the_bodys_bytes_are_taken) {
  BodyReader reader;
  ASSERT_TRUE(reader.begin(head_with_length(4), 4));
  EXPECT_EQ(*reader.consume("bo"), 2U);
  EXPECT_FALSE(reader.is_whole());
  EXPECT_EQ(*reader.consume("dynext"), 2U);
  EXPECT_TRUE(reader.is_whole());
  EXPECT_EQ(reader.take_body(), "body");
}

TEST(BodyReader, chunks_in_pieces_of_any_size_give_the_same_body) {
  constexpr unsigned kSeed = 7;
  std::mt19937 generator(kSeed);
  const auto random = [&](size_t below) { return static_cast<size_t>(generator()) % below; };
  for (int round = 0; round < 500; ++round) {
    std::string body;
    std::string framed;
    for (size_t chunk = random(5); chunk > 0; --chunk) {
      const std::string data(random(40) + 1, static_cast<char>('a' + random(26)));
      body += data;
      framed += random(2) == 0 ? fmt::format("{:x}\r\n{}\r\n", data.size(), data)
                               : fmt::format("{:04X}\r\n{}\r\n", data.size(), data);
    }
    framed += "0\r\n\r\n";
    const std::string input = framed + "GET";
    BodyReader reader;
    ASSERT_TRUE(reader.begin(chunked_head(), 1000));
    size_t used = 0;
    while (!reader.is_whole()) {
      const size_t piece = random(9) + 1;
      const auto taken = reader.consume(std::string_view(input).substr(used, piece));
      ASSERT_TRUE(taken) << "seed " << kSeed << " round " << round;
      used += *taken;
    }
    EXPECT_EQ(used, framed.size()) << "seed " << kSeed << " round " << round;
    EXPECT_EQ(reader.take_body(), body) << "seed " << kSeed << " round " << round;
  }
}

TEST(BodyReader, a_body_above_the_limit_is_refused_before_its_bytes_come) {
  BodyReader reader;
  EXPECT_EQ(reader.begin(head_with_length(11), 10).error().status, 413);
  ASSERT_TRUE(reader.begin(chunked_head(), 10));
  ASSERT_TRUE(reader.consume("5\r\n12345\r\n5\r\n12345\r\n"));
  EXPECT_EQ(reader.consume("1\r").error().status, 413);
}

TEST(BodyReader, it_can_be_used_again) {
  BodyReader reader;
  ASSERT_TRUE(reader.begin(chunked_head(), 10));
  ASSERT_TRUE(reader.consume("3\r\nab"));
  ASSERT_TRUE(reader.begin(chunked_head(), 10));
  ASSERT_TRUE(reader.consume("1\r\nx\r\n0\r\n\r\n"));
  EXPECT_EQ(reader.take_body(), "x");
}

}  // namespace
}  // namespace lockstep
