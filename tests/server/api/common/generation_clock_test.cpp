#include <gtest/gtest.h>

#include "server/api/common/generation_note.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
constexpr GenerationClock::Clock::time_point kStart{1h};

GenerationNote note_of(const GenerationClock& clock) {
  GenerationNote note;
  clock.fill(note);
  return note;
}

TEST(GenerationClock, without_a_token_nothing_is_known) {
  GenerationClock clock;
  clock.start(2, kStart);
  clock.observe(0, 0, kStart + 1s);  // news without a token
  const GenerationNote note = note_of(clock);
  EXPECT_FALSE(note.queue_seconds);
  EXPECT_FALSE(note.first_token_seconds);
  EXPECT_FALSE(note.per_token_seconds);
}

TEST(GenerationClock, one_token_has_a_first_time_and_no_mean) {
  GenerationClock clock;
  clock.start(1, kStart);
  clock.observe(0, 1, kStart + 250ms);
  clock.observe(0, 1, kStart + 10s);  // the end, without another token
  const GenerationNote note = note_of(clock);
  EXPECT_DOUBLE_EQ(note.first_token_seconds.value(), 0.25);
  EXPECT_FALSE(note.per_token_seconds);
}

TEST(GenerationClock, the_mean_is_of_the_tokens_after_the_first) {
  GenerationClock clock;
  clock.start(1, kStart);
  clock.observe(0, 1, kStart + 5s);
  clock.observe(0, 2, kStart + 6s);
  clock.observe(0, 5, kStart + 7s);
  const GenerationNote note = note_of(clock);
  EXPECT_DOUBLE_EQ(note.first_token_seconds.value(), 5);
  EXPECT_DOUBLE_EQ(note.per_token_seconds.value(), 0.5);
}

TEST(GenerationClock, what_comes_with_the_first_token_is_not_in_the_mean) {
  GenerationClock clock;
  clock.start(1, kStart);
  clock.observe(0, 3, kStart + 1s);
  clock.observe(0, 4, kStart + 3s);
  EXPECT_DOUBLE_EQ(note_of(clock).per_token_seconds.value(), 2);
}

TEST(GenerationClock, of_several_requests_the_first_token_of_any_and_the_mean_over_all_count) {
  GenerationClock clock;
  clock.start(3, kStart);
  clock.observe(1, 1, kStart + 2s);
  clock.observe(0, 1, kStart + 3s);
  clock.observe(1, 3, kStart + 4s);  // 2 tokens in 2 s
  clock.observe(0, 2, kStart + 7s);  // 1 token in 4 s
  const GenerationNote note = note_of(clock);
  EXPECT_DOUBLE_EQ(note.first_token_seconds.value(), 2);
  EXPECT_DOUBLE_EQ(note.per_token_seconds.value(), 2);
}

TEST(GenerationClock, the_queue_is_left_when_the_first_request_leaves_it) {
  GenerationClock clock;
  clock.start(2, kStart);
  clock.observe_queue(0.5);
  clock.observe_queue(0.125);
  clock.observe_queue(0.5);
  EXPECT_DOUBLE_EQ(note_of(clock).queue_seconds.value(), 0.125);
}

}  // namespace
}  // namespace lockstep
