#include "server/daemon/line_budget.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
constexpr LineBudget::Time kStart{1h};

TEST(LineBudget, a_burst_is_taken_and_then_so_many_a_second) {
  LineBudget budget(2, 5);
  int taken = 0;
  for (int count = 0; count < 100; ++count) taken += budget.take(kStart) ? 1 : 0;
  EXPECT_EQ(taken, 5);
  for (int second = 1; second <= 10; ++second) {
    for (int count = 0; count < 100; ++count) taken += budget.take(kStart + 1s * second) ? 1 : 0;
    EXPECT_EQ(taken, 5 + 2 * second);
  }
  // An hour of silence is worth no more than a burst.
  for (int count = 0; count < 100; ++count) taken += budget.take(kStart + 1h) ? 1 : 0;
  EXPECT_EQ(taken, 5 + 20 + 5);
}

TEST(LineBudget, every_line_that_was_left_out_is_told_once_and_not_too_often) {
  LineBudget budget(1, 1);
  EXPECT_FALSE(budget.left_out(kStart, 10s));
  for (int count = 0; count < 4; ++count) budget.take(kStart);
  EXPECT_EQ(budget.left_out(kStart, 10s), 3U);
  EXPECT_FALSE(budget.left_out(kStart + 20s, 10s));
  budget.take(kStart);
  EXPECT_FALSE(budget.left_out(kStart + 9s, 10s));
  EXPECT_EQ(budget.left_out(kStart + 10s, 10s), 1U);
}

}  // namespace
}  // namespace lockstep
