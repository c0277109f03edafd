#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "engine/text/text_stream.h"

namespace lockstep {
namespace {

TEST(StopMatcher, holds_back_only_what_may_become_a_stop) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.push("abE").released, "ab");
  EXPECT_EQ(matcher.push("N").released, "");
  EXPECT_EQ(matcher.push("x").released, "ENx");
  EXPECT_EQ(matcher.push("EEN").released, "E");
  const auto progress = matcher.push("D and more");
  EXPECT_EQ(progress.released, "");
  EXPECT_EQ(progress.matched, 0U);
}

TEST(StopMatcher, the_end_gives_what_was_held_back) {
  StopMatcher matcher({"\n\n"});
  EXPECT_EQ(matcher.push("a\n").released, "a");
  EXPECT_EQ(matcher.finish(), "\n");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, a_prefix_may_start_anew_within_itself) {
  StopMatcher matcher({"aab"});
  EXPECT_EQ(matcher.push("aa").released, "");
  EXPECT_EQ(matcher.push("a").released, "a");
  const auto progress = matcher.push("b");
  EXPECT_EQ(progress.released, "");
  EXPECT_TRUE(progress.matched);
}

TEST(StopMatcher, the_one_complete_first_wins_and_of_equal_ends_the_longest) {
  StopMatcher matcher({"bcd", "abc", "c", "", "bc"});
  const auto progress = matcher.push("xabcd");
  EXPECT_EQ(progress.released, "x");
  EXPECT_EQ(progress.matched, 1U);
}

TEST(StopMatcher, without_stops_everything_passes) {
  StopMatcher none({});
  EXPECT_EQ(none.push("abc").released, "abc");
  StopMatcher empty({""});
  EXPECT_EQ(empty.push("abc").released, "abc");
}

// The definition over the whole text: the least end of an occurrence, the longest that ends there.
struct Expected {
  std::string released;
  bool matched = false;
  size_t index = 0;
};
Expected match_whole(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t best = stops.size();
    for (size_t index = 0; index < stops.size(); ++index) {
      const size_t size = stops[index].size();
      if (size == 0 || size > end || text.compare(end - size, size, stops[index]) != 0) continue;
      if (best == stops.size() || size > stops[best].size()) best = index;
    }
    if (best < stops.size()) return {text.substr(0, end - stops[best].size()), true, best};
  }
  return {text, false, 0};
}

TEST(StopMatcher, any_cutting_into_pieces_gives_the_same_text) {
  const uint64_t seed = 4;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const auto word = [&](size_t size) {
    std::string letters;
    while (letters.size() < size) letters += "ab"[random() % 2];
    return letters;
  };
  int matches = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> stops;
    for (size_t count = random() % 4; count > 0; --count) stops.push_back(word(random() % 8));
    const std::string text = word(random() % 30);
    const Expected expected = match_whole(text, stops);
    StopMatcher matcher(stops);
    std::string released;
    std::optional<size_t> matched;
    for (size_t position = 0; position < text.size() && !matched;) {
      const size_t size = 1 + random() % 5;
      const auto progress = matcher.push(std::string_view(text).substr(position, size));
      released += progress.released;
      matched = progress.matched;
      position += size;
    }
    if (!matched) released += matcher.finish();
    ASSERT_EQ(released, expected.released) << "round " << round;
    ASSERT_EQ(matched.has_value(), expected.matched) << "round " << round;
    if (matched) {
      ASSERT_EQ(stops[*matched], stops[expected.index]) << "round " << round;
      ++matches;
    }
  }
  EXPECT_GT(matches, 1000);
}

}  // namespace
}  // namespace lockstep
