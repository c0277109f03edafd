#include "engine/machine/signal_line.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

TEST(SignalLine, a_number_that_is_reached_is_not_waited_for) {
  SignalLine line;
  line.set(7);
  line.wait_for(7, 0);
  line.wait_for(3, 0);
  EXPECT_EQ(line.value(), 7U);
}

TEST(SignalLine, numbers_wrap_around) {
  SignalLine line;
  line.set(0xFFFFFFFFU);
  std::thread setter([&] { line.set(1); });
  line.wait_for(1, 0);
  setter.join();
  line.wait_for(0xFFFFFFFFU, 0);  // is behind 1
}

TEST(SignalLine, a_thread_that_has_to_wait_sleeps_and_is_woken_once_its_number_is_reached) {
  SignalLine line;
  uint32_t written = 0;
  std::vector<std::thread> waiters;
  for (int waiter = 0; waiter < 3; ++waiter) {
    waiters.emplace_back([&] {
      line.wait_for(2, Patience{.spins = 3, .yields = 3});
      EXPECT_EQ(written, 5U);
    });
  }
  const auto wait_until_all_sleep = [&] {
    while (line.sleepers() < 3) std::this_thread::yield();
  };
  wait_until_all_sleep();
  line.set(1);             // wakes them for nothing
  wait_until_all_sleep();  // so they must have gone back to sleep
  written = 5;
  line.set(2);
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(line.sleepers(), 0U);
}

TEST(SignalLine, no_wake_up_is_lost_between_two_that_take_turns) {
  SignalLine there;
  SignalLine back;
  constexpr uint32_t kTurns = 20000;
  std::thread other([&] {
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
      there.wait_for(turn, turn % 3);
      back.set(turn);
    }
  });
  for (uint32_t turn = 1; turn <= kTurns; ++turn) {
    there.set(turn);
    back.wait_for(turn, turn % 5);
  }
  other.join();
}

TEST(SignalLines, lines_start_at_zero_on_pages_of_their_own_wherever_they_are_wanted) {
  // Nodes that this machine lacks are a request that is not fulfilled.
  for (const int node : {-1, 0, 63, 1000}) {
    SignalLines lines(33, node);
    ASSERT_EQ(lines.size(), 33U);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(&lines[0]) % 4096, 0U);
    for (size_t index = 0; index < lines.size(); ++index) EXPECT_EQ(lines[index].value(), 0U);
    lines[32].set(1);
    EXPECT_EQ(lines[32].value(), 1U);
  }
}

}  // namespace
}  // namespace lockstep
