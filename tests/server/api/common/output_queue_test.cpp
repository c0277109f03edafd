#include <gtest/gtest.h>

#include <optional>

#include "server/api/common/outputs.h"

namespace lockstep {
namespace {

using Break = OutputQueue::Break;

constexpr std::chrono::milliseconds kAtOnce{0};

Output text_of(size_t bytes) {
  Output output;
  output.text = std::string(bytes, 'x');
  return output;
}

TEST(OutputQueue, a_reader_that_keeps_up_never_fills_it) {
  OutputQueue queue(10'000);
  for (int count = 0; count < 100; ++count) {
    queue.push(0, text_of(5'000));
    EXPECT_EQ(queue.wait(kAtOnce).size(), 1U);
  }
  EXPECT_EQ(queue.broken(), Break::kNone);
}

TEST(OutputQueue, what_a_slow_reader_leaves_is_bounded_and_breaks_it_once) {
  OutputQueue queue(10'000);
  int calls = 0;
  std::optional<Break> why;
  queue.on_break([&](Break reason) {
    ++calls;
    why = reason;
  });
  for (int count = 0; count < 100; ++count) queue.push(0, text_of(3'000));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(why, Break::kFull);
  EXPECT_EQ(queue.broken(), Break::kFull);
  size_t bytes = 0;
  for (const auto& event : queue.wait(kAtOnce)) bytes += event.output.text.size();
  EXPECT_GE(bytes, 3'000U);
  EXPECT_LE(bytes, 10'000U);
  EXPECT_TRUE(queue.wait(std::chrono::hours(1)).empty());  // at once
}

TEST(OutputQueue, all_that_an_output_holds_counts) {
  OutputQueue queue(10'000);
  Output output;
  output.tokens.resize(1);
  output.tokens[0].top.resize(2'000);
  queue.push(0, std::move(output));
  EXPECT_EQ(queue.broken(), Break::kFull);
}

TEST(OutputQueue, one_that_is_broken_already_says_so_and_one_that_is_taken_back_does_not) {
  OutputQueue queue(1);
  int calls = 0;
  queue.on_break([&](Break) { ++calls; });
  queue.on_break({});
  queue.push(0, text_of(3'000));
  EXPECT_EQ(calls, 0);
  queue.on_break([&](Break) { ++calls; });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace lockstep
