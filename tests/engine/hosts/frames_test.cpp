#include "engine/hosts/frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace lockstep {
namespace {

using Bytes = std::vector<std::byte>;

std::span<const std::byte> payload_of(const Bytes& frame, FrameKind kind) {
  const auto decoded = decode_frame(frame);
  EXPECT_TRUE(decoded) << decoded.error().message;
  if (!decoded) return {};
  EXPECT_EQ(decoded->kind, kind);
  EXPECT_EQ(decoded->payload.size(), frame.size() - kFrameHeadBytes);
  return decoded->payload;
}

Hello some_hello() {
  return {.index = 2,
          .count = 3,
          .run = random_nonce(),
          .version = "1.2.3",
          .listens_at = "node-2:7070",
          .listens_port = 7071,
          .group = "node-0:7070,node-1:7070"};
}

TEST(Frames, hellos_come_back) {
  const Hello hello = some_hello();
  Bytes frame;
  append_frame(hello, frame);
  const auto decoded = decode_hello(payload_of(frame, FrameKind::kHello));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->protocol, kHostProtocol);
  EXPECT_EQ(decoded->index, hello.index);
  EXPECT_EQ(decoded->count, hello.count);
  EXPECT_EQ(decoded->run, hello.run);
  EXPECT_EQ(decoded->version, hello.version);
  EXPECT_EQ(decoded->listens_at, hello.listens_at);
  EXPECT_EQ(decoded->listens_port, hello.listens_port);
  EXPECT_EQ(decoded->group, hello.group);
}

TEST(Frames, hellos_of_links_come_back) {
  const LinkHello hello = {.group = random_nonce(), .from = 3, .to = 1};
  Bytes frame;
  append_frame(hello, frame);
  const auto decoded = decode_link_hello(payload_of(frame, FrameKind::kLinkHello));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->group, hello.group);
  EXPECT_EQ(decoded->from, hello.from);
  EXPECT_EQ(decoded->to, hello.to);
}

TEST(Frames, welcomes_come_back) {
  Welcome welcome = {.group = random_nonce(), .addresses = {}};
  for (size_t host = 0; host < kMostHosts; ++host) {
    welcome.addresses.emplace_back(host, 'a');
  }
  Bytes frame;
  append_frame(welcome, frame);
  const auto decoded = decode_welcome(payload_of(frame, FrameKind::kWelcome));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->group, welcome.group);
  EXPECT_EQ(decoded->addresses, welcome.addresses);
}

TEST(Frames, documents_and_failures_come_back) {
  Bytes frame;
  append_frame(HostDocument{7, "{\"a\":1}"}, frame);
  const auto document = decode_document(payload_of(frame, FrameKind::kDocument));
  ASSERT_TRUE(document) << document.error().message;
  EXPECT_EQ(document->host, 7U);
  EXPECT_EQ(document->text, "{\"a\":1}");
  for (const ErrorKind kind :
       {ErrorKind::kInvalidInput, ErrorKind::kMachineRefused, ErrorKind::kUnavailable}) {
    frame.clear();
    append_failure({kind, "two\nlines"}, frame);
    const Error reason = decode_failure(payload_of(frame, FrameKind::kFailure));
    EXPECT_EQ(reason.kind, kind);
    EXPECT_EQ(reason.message, "two lines");
  }
}

TEST(Frames, a_reason_of_any_length_has_a_frame) {
  Bytes frame;
  append_failure({ErrorKind::kUnavailable, std::string(1U << 20U, 'x')}, frame);
  EXPECT_EQ(decode_failure(payload_of(frame, FrameKind::kFailure)).message, std::string(2048, 'x'));
  frame.clear();
  append_text_frame(FrameKind::kRefusal, std::string(1U << 20U, 'x'), frame);
  EXPECT_EQ(decode_text(payload_of(frame, FrameKind::kRefusal)), std::string(2048, 'x'));
}

// A host of another version is told why it is refused, whatever else it says.
TEST(Frames, hellos_of_other_versions_say_their_version) {
  const Bytes newer = {std::byte{9}, std::byte{0}, std::byte{0}, std::byte{0}, std::byte{1}};
  EXPECT_EQ(decode_hello(newer)->protocol, 9U);
  EXPECT_EQ(decode_link_hello(newer)->protocol, 9U);
}

TEST(Frames, what_is_cut_short_or_has_more_is_refused) {
  Bytes hello, link, welcome;
  append_frame(some_hello(), hello);
  append_frame(LinkHello(), link);
  append_frame(Welcome{random_nonce(), {"a:1", "b:2"}}, welcome);
  const auto check = [](Bytes frame, const std::function<bool(std::span<const std::byte>)>& reads) {
    for (size_t length = 0; length < frame.size(); ++length) {
      EXPECT_FALSE(decode_frame(std::span(frame).first(length))) << length;
      if (length < kFrameHeadBytes) continue;
      EXPECT_FALSE(reads(std::span(frame).first(length).subspan(kFrameHeadBytes))) << length;
    }
    EXPECT_TRUE(reads(std::span(frame).subspan(kFrameHeadBytes)));
    frame.push_back(std::byte{0});
    EXPECT_FALSE(reads(std::span(frame).subspan(kFrameHeadBytes)));
  };
  check(hello, [](auto payload) { return decode_hello(payload).has_value(); });
  check(link, [](auto payload) { return decode_link_hello(payload).has_value(); });
  check(welcome, [](auto payload) { return decode_welcome(payload).has_value(); });
}

TEST(Frames, every_kind_has_a_bound) {
  for (int kind = 0; kind < 256; ++kind) {
    Bytes frame;
    append_frame(FrameKind::kPing, {}, frame);
    frame[4] = static_cast<std::byte>(kind);
    const auto head = std::span<const std::byte, kFrameHeadBytes>(frame);
    const bool is_kind = kind >= 1 && kind <= static_cast<int>(FrameKind::kMissing);
    EXPECT_EQ(decode_head(head).has_value(), is_kind) << kind;
    frame[3] = std::byte{0x7f};
    EXPECT_FALSE(decode_head(head)) << kind;
  }
}

}  // namespace
}  // namespace lockstep
