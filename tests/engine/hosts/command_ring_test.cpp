// Commands that a host keeps before it is asked for them: in order, and in bounded memory.
#include <gtest/gtest.h>

#include <random>

#include "engine/hosts/peer.h"

namespace lockstep {
namespace {

std::vector<std::byte> command_of(size_t bytes, size_t number) {
  std::vector<std::byte> command(bytes);
  command[0] = static_cast<std::byte>(number);
  return command;
}

// Pushes until it is full; how many it took.
size_t fill(CommandRing& ring, size_t bytes) {
  size_t count = 0;
  while (!ring.is_full()) {
    auto command = command_of(bytes, count++);
    ring.push(command);
  }
  return count;
}

TEST(CommandRing, is_full_of_eight_short_commands_or_a_mebibyte) {
  constexpr std::pair<size_t, size_t> kCases[] = {
      {100, 8}, {CommandRing::kSmallBytes, 8}, {300U << 10U, 4}, {5U << 20U, 1}};
  for (const auto& [bytes, count] : kCases) {
    CommandRing ring;
    EXPECT_EQ(fill(ring, bytes), count) << bytes;
    std::vector<std::byte> command;
    for (size_t number = 0; number < count; ++number) {
      ring.pop(command);
      ASSERT_EQ(command.size(), bytes);
      EXPECT_EQ(command[0], std::byte(number));
    }
    EXPECT_TRUE(ring.is_empty());
  }
}

TEST(CommandRing, memory_is_bounded_whatever_has_come_before) {
  constexpr size_t kLongest = size_t{3} << 20U;
  constexpr uint64_t kSeed = 28;
  std::mt19937_64 random(kSeed);
  CommandRing ring;
  std::vector<std::byte> pushed;
  std::vector<std::byte> popped;
  for (int round = 0; round < 2000; ++round) {
    if (!ring.is_full() && random() % 2 == 0) {
      pushed.resize(random() % 4 == 0 ? kLongest : 1 + random() % 1000);
      ring.push(pushed);
    } else if (!ring.is_empty()) {
      ring.pop(popped);
    }
    ASSERT_LE(ring.kept_bytes(), 2 * CommandRing::kBytesMost + 2 * kLongest)
        << "seed " << kSeed << ", round " << round;
  }
}

}  // namespace
}  // namespace lockstep
