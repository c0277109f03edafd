#include "server/daemon/stall_detector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

namespace lockstep {
namespace {

constexpr double kTick = 0.25;
constexpr double kStall = 30;

// The stages that an engine which stopped at 0 goes through, and when.
struct Change {
  double seconds;
  StallStage stage;
};
std::vector<Change> changes_until(double end, const std::function<double(double)>& age) {
  StallDetector detector(kTick);
  std::vector<Change> changes;
  StallStage last = StallStage::kFine;
  for (double now = 0; now <= end; now += kTick) {
    const StallStage stage = detector.observe(1000 + now, age(now), kStall);
    if (stage != last) changes.push_back({now, stage});
    last = stage;
  }
  return changes;
}

TEST(StallDetector, a_stall_is_late_within_10_seconds_and_dead_within_60) {
  const auto changes = changes_until(60, [](double now) { return now; });
  ASSERT_EQ(changes.size(), 3U);
  EXPECT_EQ(changes[0].stage, StallStage::kLate);
  EXPECT_LE(changes[0].seconds, 10);
  EXPECT_EQ(changes[1].stage, StallStage::kStalled);
  EXPECT_NEAR(changes[1].seconds, kStall, kTick);
  EXPECT_EQ(changes[2].stage, StallStage::kDead);
  EXPECT_LE(changes[2].seconds, 60);
}

TEST(StallDetector, a_heartbeat_in_time_is_fine_for_ever) {
  EXPECT_TRUE(changes_until(10000, [](double now) { return std::fmod(now, 8); }).empty());
}

TEST(StallDetector, a_late_engine_that_moves_again_is_fine_again) {
  const auto changes = changes_until(40, [](double now) { return now < 15 ? now : 0.1; });
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].stage, StallStage::kLate);
  EXPECT_EQ(changes[1].stage, StallStage::kFine);
}

TEST(StallDetector, time_in_which_nobody_ran_does_not_count) {
  StallDetector detector(kTick);
  EXPECT_EQ(detector.observe(0, 0, kStall), StallStage::kFine);
  // The process was stopped for an hour in the middle of a pass.
  EXPECT_EQ(detector.observe(3600, 3600, kStall), StallStage::kFine);
  EXPECT_LE(detector.stalled_seconds(), 2 * kTick);
  // Then the pass goes on for ever.
  double now = 3600;
  while (detector.observe(now, now, kStall) != StallStage::kDead) now += kTick;
  EXPECT_NEAR(now - 3600, dead_seconds(kStall), 1);
}

TEST(StallDetector, another_limit_counts_from_the_next_look_on) {
  StallDetector detector(kTick);
  double now = 0;
  for (; now < 20; now += kTick) detector.observe(now, now, kStall);
  EXPECT_EQ(detector.observe(now, now, kStall), StallStage::kLate);
  EXPECT_EQ(detector.observe(now, now, 1000), StallStage::kFine);
  EXPECT_EQ(detector.observe(now, now, 15), StallStage::kStalled);
}

}  // namespace
}  // namespace lockstep
