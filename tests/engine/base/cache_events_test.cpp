// The queue between the engine's thread and one that publishes: it never waits, and hides no loss.
#include "engine/base/cache_events.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace lockstep {
namespace {

using Kind = CacheEvent::Kind;

constexpr std::chrono::milliseconds kNoPatience{0};

std::vector<CacheEvent> take(CacheEvents& events) {
  std::vector<CacheEvent> taken;
  EXPECT_TRUE(events.take(taken, kNoPatience));
  return taken;
}

TEST(CacheEvents, come_in_order_with_all_that_was_told) {
  CacheEvents events;
  const std::vector<int32_t> tokens = {7, 8};
  events.store(1, {}, tokens, "salt");
  events.store(2, 1, tokens, "");
  events.remove(2);
  events.clear();
  const std::vector<CacheEvent> expected = {
      {.kind = Kind::kStored, .block = 1, .tokens = tokens, .salt = "salt"},
      {.kind = Kind::kStored, .block = 2, .before = 1, .tokens = tokens},
      {.kind = Kind::kRemoved, .block = 2},
      {.kind = Kind::kCleared}};
  EXPECT_EQ(take(events), expected);
  EXPECT_TRUE(take(events).empty());
  EXPECT_EQ(events.told_count(), 4U);
  EXPECT_EQ(events.dropped_count(), 0U);
}

TEST(CacheEvents, what_finds_no_space_is_counted_and_seen_as_a_gap) {
  CacheEvents events(2);
  for (uint64_t block = 1; block <= 5; ++block) events.remove(block);
  EXPECT_EQ(events.dropped_count(), 3U);
  std::vector<CacheEvent> taken = take(events);
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_FALSE(taken[0].is_after_gap || taken[1].is_after_gap);
  events.remove(6);
  events.remove(7);
  taken = take(events);
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_EQ(taken[0].block, 6U);
  EXPECT_TRUE(taken[0].is_after_gap);
  EXPECT_FALSE(taken[1].is_after_gap);
  EXPECT_EQ(events.told_count(), 7U);
}

TEST(CacheEvents, end_when_they_are_stopped_and_read) {
  CacheEvents events;
  events.remove(1);
  events.stop();
  std::vector<CacheEvent> taken;
  EXPECT_TRUE(events.take(taken, kNoPatience));
  EXPECT_EQ(taken.size(), 1U);
  EXPECT_FALSE(events.take(taken, std::chrono::hours(1)));
  EXPECT_TRUE(taken.empty());
}

TEST(CacheEvents, are_taken_by_another_thread_while_they_come) {
  constexpr uint64_t kCount = 20'000;
  CacheEvents events(kCount);
  uint64_t next = 1;
  std::thread reader([&] {
    std::vector<CacheEvent> taken;
    while (events.take(taken, std::chrono::hours(1))) {
      for (const CacheEvent& event : taken) EXPECT_EQ(event.block, next++);
    }
  });
  for (uint64_t block = 1; block <= kCount; ++block) events.remove(block);
  events.stop();
  reader.join();
  EXPECT_EQ(next, kCount + 1);
}

}  // namespace
}  // namespace lockstep
