// Passes that are promised before the last one's tokens are known.
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/scheduler/passes.h"

namespace lockstep {
namespace {

// Two sequences that generate, in the middle of a pass.
class Promises : public ::testing::Test {
 protected:
  explicit Promises(const SchedulerLimits& limits = small_limits()) : passes_(limits) {}

  void begin() {
    one_ = passes_.add(2, 30);
    other_ = passes_.add(3, 30);
    passes_.pass();
    passes_.next();
  }

  Passes passes_;
  SequenceId one_ = 0;
  SequenceId other_ = 0;
};

TEST_F(Promises, the_next_pass_is_a_token_of_each_stream) {
  begin();
  const Schedule* const promised = passes_.scheduler.promise();
  ASSERT_NE(promised, nullptr);
  ASSERT_EQ(promised->chunks.size(), 2U);
  EXPECT_EQ(promised->chunks[0].sequence, one_);
  EXPECT_EQ(promised->chunks[0].begin, 3U);
  EXPECT_EQ(promised->chunks[1].begin, 4U);
  EXPECT_EQ(promised->cleared_pages.size(), 1U);  // of the second's fifth token
  EXPECT_EQ(passes_.pages(other_).size(), 2U);
  passes_.scheduler.computed();
  for (const SequenceId id : {one_, other_}) passes_.scheduler.append_token(id, 7);
  const Schedule& kept = passes_.next();
  ASSERT_EQ(kept.chunks.size(), 2U);
  for (const Chunk& chunk : kept.chunks) EXPECT_FALSE(chunk.ended);
  EXPECT_EQ(kept.chunks[1].begin, 4U);
}

TEST_F(Promises, an_end_breaks_the_promise_for_that_one_alone) {
  begin();
  ASSERT_NE(passes_.scheduler.promise(), nullptr);
  passes_.scheduler.computed();
  passes_.scheduler.append_token(one_, 7);
  passes_.scheduler.finish(other_);
  EXPECT_TRUE(passes_.scheduler.has_promised());
  const Schedule& kept = passes_.next();
  ASSERT_EQ(kept.chunks.size(), 2U);
  EXPECT_FALSE(kept.chunks[0].ended);
  EXPECT_TRUE(kept.chunks[1].ended);
  // And the one behind it is of what is left.
  const Schedule* const promised = passes_.scheduler.promise();
  ASSERT_NE(promised, nullptr);
  ASSERT_EQ(promised->chunks.size(), 1U);
  passes_.scheduler.computed();
  passes_.scheduler.finish(one_);
  EXPECT_FALSE(passes_.scheduler.has_promised());
  passes_.scheduler.withdraw();
  EXPECT_TRUE(passes_.scheduler.idle());
  EXPECT_TRUE(passes_.next().chunks.empty());
}

TEST_F(Promises, who_comes_meanwhile_begins_a_pass_later) {
  begin();
  ASSERT_NE(passes_.scheduler.promise(), nullptr);
  const SequenceId late = passes_.add(4, 8);
  passes_.scheduler.computed();
  for (const SequenceId id : {one_, other_}) passes_.scheduler.append_token(id, 7);
  EXPECT_EQ(passes_.next().chunks.size(), 2U);
  EXPECT_EQ(passes_.scheduler.promise(), nullptr);
  passes_.scheduler.computed();
  for (const SequenceId id : {one_, other_}) passes_.scheduler.append_token(id, 7);
  EXPECT_TRUE(passes_.pass().contains(late));
}

TEST_F(Promises, none_is_made_of_a_prompt) {
  passes_.add(2, 30);
  passes_.next();
  EXPECT_EQ(passes_.scheduler.promise(), nullptr);
}

TEST_F(Promises, none_is_made_where_the_last_token_is_due) {
  one_ = passes_.add(2, 3);  // and one that is sampled and not computed
  passes_.pass();
  passes_.next();
  ASSERT_NE(passes_.scheduler.promise(), nullptr);
  passes_.scheduler.computed();
  passes_.scheduler.append_token(one_, 7);
  passes_.next();
  EXPECT_EQ(passes_.scheduler.promise(), nullptr);
}

TEST_F(Promises, a_promise_that_is_withdrawn_is_a_pass_like_any_other) {
  begin();
  ASSERT_NE(passes_.scheduler.promise(), nullptr);
  passes_.scheduler.computed();
  for (const SequenceId id : {one_, other_}) passes_.scheduler.append_token(id, 7);
  passes_.scheduler.withdraw();
  const Schedule& schedule = passes_.next();
  ASSERT_EQ(schedule.chunks.size(), 2U);
  EXPECT_EQ(schedule.chunks[1].begin, 4U);
  EXPECT_TRUE(schedule.cleared_pages.empty());
}

class PromisesWithFewPages : public Promises {
 protected:
  PromisesWithFewPages() : Promises(few_pages()) {}
  static SchedulerLimits few_pages() {
    SchedulerLimits limits = small_limits();
    limits.page_count = 9;
    return limits;
  }
};

TEST_F(PromisesWithFewPages, none_is_made_where_a_page_is_missing_and_nobody_gives_up_any) {
  one_ = passes_.add(15, 32);
  other_ = passes_.add(15, 32);
  while (passes_.pages(one_).size() + passes_.pages(other_).size() < 9) passes_.pass();
  size_t promised = 0;
  while (passes_.scheduler.counters().preemptions == 0) {
    passes_.next();
    if (passes_.scheduler.counters().preemptions > 0) break;
    promised = passes_.scheduler.promise() != nullptr ? promised + 1 : 0;
    EXPECT_EQ(passes_.scheduler.counters().preemptions, 0U);
    passes_.scheduler.computed();
    for (const SequenceId id : {one_, other_}) passes_.scheduler.append_token(id, 7);
  }
  EXPECT_EQ(promised, 0U) << "the pass before pages were missing was promised";
}

class PromisesWithDrafts : public Promises {
 protected:
  PromisesWithDrafts() : Promises(with_drafts()) {}
  static SchedulerLimits with_drafts() {
    SchedulerLimits limits = small_limits();
    limits.draft_tokens = 2;
    return limits;
  }
};

// They come one pass late, and no promise follows a pass that has some.
TEST_F(PromisesWithDrafts, drafts_wait_for_the_promised_pass_and_no_longer) {
  begin();
  ASSERT_NE(passes_.scheduler.promise(), nullptr);
  passes_.scheduler.computed();
  for (const SequenceId id : {one_, other_}) passes_.scheduler.append_token(id, 7);
  const std::vector<int32_t> drafts = {7, 7};
  passes_.scheduler.propose(one_, drafts);
  for (const Chunk& chunk : passes_.next().chunks) EXPECT_EQ(chunk.drafted, 0U);
  EXPECT_EQ(passes_.scheduler.promise(), nullptr);
  passes_.scheduler.computed();
  for (const SequenceId id : {one_, other_}) passes_.scheduler.append_token(id, 7);
  passes_.scheduler.propose(one_, drafts);
  EXPECT_EQ(passes_.next().chunks[0].drafted, 2U);
  EXPECT_EQ(passes_.scheduler.promise(), nullptr);
}

}  // namespace
}  // namespace lockstep
