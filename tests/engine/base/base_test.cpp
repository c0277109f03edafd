#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "engine/base/ascii.h"
#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/base/histogram.h"
#include "engine/base/result.h"

namespace lockstep {
namespace {

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

TEST(Ascii, letters_become_small_and_nothing_else_changes) {
  EXPECT_EQ(ascii_lower("Content-TYPE @[`{ \xc3\x84"), "content-type @[`{ \xc3\x84");
  EXPECT_EQ(ascii_lower(""), "");
}

TEST(Ascii, hexadecimal_digits_have_values) {
  const std::string_view digits = "0123456789abcdefABCDEF";
  for (int c = -128; c < 128; ++c) {
    const size_t place = digits.find(static_cast<char>(c));
    const auto value = hex_digit(static_cast<char>(c));
    ASSERT_EQ(value.has_value(), place != std::string_view::npos) << c;
    if (value) {
      EXPECT_EQ(*value, place < 16 ? place : place - 6) << c;
    }
  }
}

TEST(Ascii, blanks_at_both_ends_are_trimmed) {
  EXPECT_EQ(trimmed(" \t a \t b\t "), "a \t b");
  EXPECT_EQ(trimmed(" \t "), "");
  EXPECT_EQ(trimmed(""), "");
  EXPECT_EQ(trimmed(" a\r\n"), "a\r\n");
  EXPECT_EQ(trimmed(" a\r\n", " \r\n"), "a");
}

TEST(CheckedMath, an_overflow_is_no_value) {
  EXPECT_EQ(checked_add(kMost - 1, 1), kMost);
  EXPECT_FALSE(checked_add(kMost, 1).has_value());
  EXPECT_EQ(checked_multiply(1U << 31U, 1U << 31U), uint64_t{1} << 62U);
  EXPECT_FALSE(checked_multiply(uint64_t{1} << 32U, uint64_t{1} << 32U).has_value());
  EXPECT_EQ(checked_round_up(33, 32), 64U);
  EXPECT_FALSE(checked_round_up(kMost - 3, 32).has_value());
}

TEST(CheckedMath, rounds_up_to_whole_parts) {
  EXPECT_EQ(divide_up(0U, 32U), 0U);
  EXPECT_EQ(divide_up(32U, 32U), 1U);
  EXPECT_EQ(divide_up(33U, 32U), 2U);
  EXPECT_EQ(round_up(33U, 32U), 64U);
}

TEST(Histogram, an_observation_counts_in_the_first_bucket_that_is_not_below_it) {
  const std::vector<double> bounds = {1, 2, 4};
  Histogram histogram(bounds);
  for (const double value : {0.5, 1.0, 1.5, 4.0, 100.0}) histogram.observe(value);
  const HistogramSnapshot snapshot = histogram.snapshot();
  EXPECT_EQ(snapshot.bucket_counts, (std::vector<uint64_t>{2, 1, 1, 1}));
  EXPECT_EQ(snapshot.count, 5U);
  EXPECT_DOUBLE_EQ(snapshot.sum, 107.0);
}

TEST(Result, what_was_given_exits_with_2_and_the_machine_with_1) {
  EXPECT_EQ(exit_code(invalid_input("port is {}", 70000).error()), 2);
  EXPECT_EQ(exit_code(machine_refused("port {} is taken", 80).error()), 1);
  EXPECT_EQ(invalid_input("port is {}", 70000).error().message, "port is 70000");
}

TEST(CheckDeathTest, a_bug_stops_the_process_with_its_values) {
  EXPECT_DEATH(CHECK(1 > 2, "{} is not above {}", 1, 2), "1 > 2 does not hold: 1 is not above 2");
}

}  // namespace
}  // namespace lockstep
