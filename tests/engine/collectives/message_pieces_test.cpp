// Bytes in messages of a library that is a list here, and sends what it is told to.
#include "engine/collectives/message_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

// Sends to itself.
class ListPort : public MessagePort {
 public:
  Result<void> begin_send(size_t slot, std::span<const std::byte> bytes) override {
    EXPECT_FALSE(slots_[slot]) << "a message is on its way in slot " << slot;
    slots_[slot] = bytes;
    order_.push_back(slot);
    return {};
  }
  Result<bool> has_sent(size_t slot) override {
    if (is_broken) return machine_refused("it is broken");
    return !slots_[slot];
  }
  Result<std::optional<size_t>> receive(std::span<std::byte> into) override {
    if (is_broken) return machine_refused("it is broken");
    if (arrived_.empty()) return std::nullopt;
    std::ranges::copy(arrived_.front(), into.begin());
    const size_t bytes = arrived_.front().size();
    arrived_.pop_front();
    return bytes;
  }

  Result<void> progress() override {
    if (is_broken) return machine_refused("it is broken");
    return {};
  }

  // The oldest message arrives.
  void arrive() {
    const auto bytes = std::exchange(slots_[order_.front()], {});
    order_.pop_front();
    arrived_.emplace_back(bytes->begin(), bytes->end());
  }
  void arrive_without_bytes(size_t count) { arrived_.resize(arrived_.size() + count); }
  size_t on_their_way() const { return order_.size(); }

  bool is_broken = false;

 private:
  std::optional<std::span<const std::byte>> slots_[MessagePieces::kSlots];
  std::deque<size_t> order_;
  std::deque<std::vector<std::byte>> arrived_;
};

// The connection of the link: words that were sent and those that have come.
class WordList : public BytePieces {
 public:
  Result<size_t> send_some(std::span<const std::byte> out) override {
    if (is_full) return 0;
    sent += out.size();
    return out.size();
  }
  Result<size_t> receive_some(std::span<std::byte> in) override {
    const size_t count = std::min(in.size(), came);
    came -= count;
    return count;
  }
  std::chrono::milliseconds patience() const override { return std::chrono::milliseconds(100); }

  size_t sent = 0;
  size_t came = 0;
  bool is_full = false;
};

struct MessagePiecesTest : ::testing::Test {
  static std::vector<std::byte> bytes(size_t count) {
    std::vector<std::byte> made(count);
    for (size_t index = 0; index < count; ++index)
      made[index] = static_cast<std::byte>(index % 251);
    return made;
  }

  ListPort port;
  WordList words;
  MessagePieces pieces{port, words};
};

TEST_F(MessagePiecesTest, bytes_count_as_gone_when_their_message_has) {
  const auto out = bytes(1000);
  EXPECT_EQ(pieces.send_some(out).value(), 0);
  EXPECT_EQ(pieces.send_some(out).value(), 0);
  EXPECT_EQ(port.on_their_way(), 1);
  port.arrive();
  EXPECT_EQ(pieces.send_some(out).value(), out.size());
  EXPECT_EQ(port.on_their_way(), 0);
}

TEST_F(MessagePiecesTest, bytes_that_get_ready_later_follow_in_messages_of_their_own) {
  const auto out = bytes(1000);
  EXPECT_EQ(pieces.send_some(std::span(out).first(400)).value(), 0);
  EXPECT_EQ(pieces.send_some(out).value(), 0);
  EXPECT_EQ(port.on_their_way(), 2);
  port.arrive();
  EXPECT_EQ(pieces.send_some(out).value(), 400);
  port.arrive();
  EXPECT_EQ(pieces.send_some(std::span(out).subspan(400)).value(), 600);
  std::vector<std::byte> in(1000);
  EXPECT_EQ(pieces.receive_some(in).value(), in.size());
  EXPECT_EQ(in, out);
}

TEST_F(MessagePiecesTest, long_pieces_go_in_several_messages_of_which_two_are_on_their_way) {
  const auto out = bytes(3 * MessagePieces::kMessageBytes + 5);
  std::vector<std::byte> in(out.size());
  size_t sent = 0;
  size_t received = 0;
  size_t rounds = 0;
  while (received < in.size() && rounds < 100) {
    sent += pieces.send_some(std::span(out).subspan(sent)).value();
    EXPECT_LE(port.on_their_way(), MessagePieces::kSlots);
    port.arrive();
    received += pieces.receive_some(std::span(in).subspan(received)).value();
    ++rounds;
  }
  EXPECT_EQ(rounds, 4);
  EXPECT_EQ(in, out);
}

TEST_F(MessagePiecesTest, a_message_is_taken_in_parts_and_parts_of_several_at_once) {
  const auto out = bytes(1000);
  EXPECT_EQ(pieces.send_some(std::span(out).first(600)).value(), 0);
  EXPECT_EQ(pieces.send_some(out).value(), 0);
  port.arrive();
  port.arrive();
  std::vector<std::byte> in(1000);
  EXPECT_EQ(pieces.receive_some(std::span(in).first(100)).value(), 100);
  EXPECT_EQ(pieces.receive_some(std::span(in).subspan(100, 800)).value(), 800);
  EXPECT_EQ(pieces.receive_some(std::span(in).subspan(900)).value(), 100);
  EXPECT_EQ(in, out);
  EXPECT_EQ(pieces.receive_some(in).value(), 0);
}

TEST_F(MessagePiecesTest, messages_without_bytes_are_passed_over_one_a_call) {
  const auto out = bytes(100);
  port.arrive_without_bytes(2);
  EXPECT_EQ(pieces.send_some(out).value(), 0);
  port.arrive();
  std::vector<std::byte> in(100);
  EXPECT_EQ(pieces.receive_some(in).value(), 0);
  EXPECT_EQ(pieces.receive_some(in).value(), 0);
  EXPECT_EQ(pieces.receive_some(in).value(), 100);
  EXPECT_EQ(in, out);
}

TEST_F(MessagePiecesTest, what_the_caller_sends_may_change_after_the_call) {
  auto out = bytes(100);
  const auto expected = out;
  EXPECT_EQ(pieces.send_some(out).value(), 0);
  std::ranges::fill(out, std::byte{0});
  port.arrive();
  std::vector<std::byte> in(100);
  EXPECT_EQ(pieces.receive_some(in).value(), 100);
  EXPECT_EQ(in, expected);
}

TEST_F(MessagePiecesTest, a_pass_has_ended_when_both_hosts_have_said_so) {
  words.is_full = true;
  EXPECT_FALSE(pieces.settle().value());
  words.is_full = false;
  EXPECT_FALSE(pieces.settle().value());
  EXPECT_FALSE(pieces.settle().value());
  EXPECT_EQ(words.sent, 1);  // once
  words.came = 2;            // the second one is the next pass's
  EXPECT_TRUE(pieces.settle().value());
  EXPECT_EQ(words.came, 1);
  EXPECT_TRUE(pieces.settle().value());
  EXPECT_EQ(words.sent, 2);
}

// The other host has all, has said so and has gone.
TEST_F(MessagePiecesTest, a_pass_has_ended_where_the_library_fails_behind_the_last_word) {
  port.is_broken = true;
  words.came = 1;
  EXPECT_TRUE(pieces.settle().value());
  EXPECT_EQ(pieces.settle().error().message, "it is broken");
}

TEST_F(MessagePiecesTest, bytes_beyond_a_pass_are_a_failure_at_its_end) {
  const auto out = bytes(1000);
  EXPECT_EQ(pieces.send_some(out).value(), 0);
  port.arrive();
  EXPECT_EQ(pieces.send_some(out).value(), out.size());
  std::vector<std::byte> in(600);
  EXPECT_EQ(pieces.receive_some(in).value(), in.size());
  words.came = 1;
  EXPECT_EQ(pieces.settle().error().message,
            "400 bytes more came than the pass has: the hosts' plans differ");
  EXPECT_EQ(words.sent, 0);
}

TEST_F(MessagePiecesTest, a_failure_of_the_library_is_told_by_all) {
  const auto out = bytes(100);
  EXPECT_EQ(pieces.send_some(out).value(), 0);
  port.is_broken = true;
  EXPECT_EQ(pieces.send_some(out).error().message, "it is broken");
  std::vector<std::byte> in(100);
  EXPECT_EQ(pieces.receive_some(in).error().message, "it is broken");
  MessagePieces others{port, words};
  EXPECT_EQ(others.settle().error().message, "it is broken");
  EXPECT_EQ(pieces.patience(), std::chrono::milliseconds(100));
}

}  // namespace
}  // namespace lockstep
