// Pages that several sequences hold: who finds them, who does not, and what space they leave.
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/scheduler/passes.h"

namespace lockstep {
namespace {

TEST(Scheduler, a_prefix_is_computed_once_even_in_one_pass) {
  SchedulerLimits limits = small_limits();
  limits.page_count = 40;
  limits.batch_tokens = 64;
  Passes passes(limits);
  const SequenceId first = passes.add(10, 20, {}, 5);
  const SequenceId second = passes.add(10, 20, {}, 5);
  const auto together = passes.pass();
  EXPECT_EQ(together.at(first).count, 10U);
  EXPECT_FALSE(together.contains(second));
  const Chunk rest = passes.pass().at(second);
  EXPECT_EQ(rest.begin, 8U);  // two full pages; the last tokens are always computed
  EXPECT_EQ(passes.pages(first)[1], passes.pages(second)[1]);
  EXPECT_NE(passes.pages(first)[2], passes.pages(second)[2]);
  passes.scheduler.finish(first);
  passes.scheduler.finish(second);
  // Pages of ended sequences stay. A prompt that is wholly known still computes its last page.
  const SequenceId third = passes.add(8, 20, {}, 5);
  const Chunk last = passes.pass().at(third);
  EXPECT_EQ(last.begin, 4U);
  EXPECT_TRUE(last.sample);
  EXPECT_EQ(passes.scheduler.cached_tokens(third), 4U);
  EXPECT_EQ(passes.scheduler.counters().prefix_hit_tokens, 12U);
  EXPECT_EQ(passes.scheduler.counters().prefix_query_tokens, 28U);
  EXPECT_EQ(passes.scheduler.counters().prompt_tokens, 16U);
}

// The last one's two tokens fit into a pass that the first one's do not, and the first of them
// fills the page that the first one needs next: just when the stream has taken the last page.
TEST(Scheduler, the_first_prompt_never_waits_for_a_page_of_one_behind_it) {
  SchedulerLimits limits = small_limits();
  limits.page_tokens = 1;
  limits.page_count = 49;
  Passes passes(limits, 4);
  passes.scheduler.limit_prompt_tokens({4, 4});
  const SequenceId first = passes.add(46, 46, {}, 5);
  const SequenceId stream = passes.add(1, 40);
  const SequenceId last = passes.add(41, 41, {}, 5);
  passes.most = {{first, 1}, {stream, 20}, {last, 1}};
  while (!passes.first_sampled.contains(first)) {
    ASSERT_TRUE(passes.pass().contains(first)) << "in pass " << passes.passes;
  }
  while (!passes.scheduler.idle()) ASSERT_FALSE(passes.pass().empty());
}

// A tenant can see when its tokens come, so its passes are the same whatever others sent.
TEST(Scheduler, no_pass_of_a_tenant_tells_what_another_has_sent) {
  const auto chunks_of = [](const CacheScope& before, int32_t their_first_token) {
    Passes passes(small_limits());
    NewSequence other;
    other.scope = before;
    const SequenceId id = passes.add(20, 20, other, their_first_token);
    while (!passes.first_sampled.contains(id)) passes.pass();
    passes.scheduler.finish(id);
    const SequenceId own = passes.add(20, 20, of_tenant("alice"), 5);
    std::vector<size_t> counts;
    while (!passes.first_sampled.contains(own)) counts.push_back(passes.pass().at(own).count);
    EXPECT_EQ(passes.scheduler.cached_tokens(own) == 0, counts[0] == 16U);
    return counts;
  };
  const auto unknown = chunks_of({"bob", ""}, 100);
  EXPECT_EQ(chunks_of({"bob", ""}, 5), unknown);
  EXPECT_EQ(chunks_of({"", "alice"}, 5), unknown);
  EXPECT_EQ(chunks_of({"alice", "salt"}, 5), unknown);
  EXPECT_NE(chunks_of({"alice", ""}, 5), unknown);
}

TEST(Scheduler, generated_pages_are_shared_where_their_arithmetic_is_that_of_prompts) {
  for (const bool share : {true, false}) {
    SchedulerLimits limits = small_limits();
    limits.share_generated = share;
    Passes passes(limits);
    NewSequence asked;
    asked.prompt = {1, 2, 3, 4, 5, 6};
    asked.most_tokens = 20;
    const SequenceId first = passes.scheduler.add(asked, 0);
    while (passes.passes < 8) passes.pass();  // generates sevens
    passes.scheduler.finish(first);
    asked.prompt.insert(asked.prompt.end(), {7, 7, 7, 7, 8});
    const SequenceId next = passes.scheduler.add(asked, 0);
    EXPECT_EQ(passes.pass().at(next).begin, share ? 8U : 4U);
  }
}

TEST(Scheduler, what_is_discarded_is_found_by_nobody_and_computed_again_by_sharers) {
  SchedulerLimits limits = small_limits();
  limits.page_count = 40;
  Passes passes(limits);
  const SequenceId broken = passes.add(13, 20, {}, 5);
  const SequenceId done = passes.add(5, 20, {}, 5);  // of the first page
  passes.pass();
  passes.pass();
  const SequenceId shares = passes.add(40, 40, {}, 5);
  passes.pass();
  ASSERT_EQ(passes.pages(shares)[0], passes.pages(broken)[0]);
  ASSERT_EQ(passes.pages(done)[0], passes.pages(broken)[0]);
  passes.scheduler.discard(broken);
  const auto chunks = passes.pass();
  EXPECT_EQ(chunks.at(shares).begin, 0U);
  EXPECT_EQ(chunks.at(done).count, 1U);
}

// It has found all but its last token, and has not moved yet.
TEST(Scheduler, a_sharer_without_logits_starts_over_however_little_it_lacks) {
  SchedulerLimits limits = small_limits();
  limits.page_count = 40;
  Passes passes(limits);
  const SequenceId broken = passes.add(8, 20, {}, 5);
  passes.pass();
  passes.add(40, 40, of_tenant("", -1));  // takes all that is left of a pass
  const SequenceId shares = passes.add(9, 20, {}, 5);
  EXPECT_FALSE(passes.pass().contains(shares));
  ASSERT_EQ(passes.pages(shares).size(), 2U);
  passes.scheduler.discard(broken);
  EXPECT_TRUE(passes.pages(shares).empty());
  while (!passes.first_sampled.contains(shares)) {
    const auto chunks = passes.pass();
    const bool begins = chunks.contains(shares) && chunks.at(shares).first;
    EXPECT_TRUE(!begins || chunks.at(shares).begin == 0U);
    ASSERT_LT(passes.passes, 30U);
  }
}

// Both compute the same page in one pass, the second gets the first one's instead of its own. Its
// logits say nothing of that.
TEST(Scheduler, logits_over_another_page_do_not_speak_for_the_one_that_is_shared) {
  SchedulerLimits limits = small_limits();
  limits.logit_rows = 16;
  Passes passes(limits);
  const SequenceId broken = passes.add(4, 20, {}, 5);
  NewSequence asked;
  asked.wanted = Wanted::kAllLogits;
  const SequenceId shares = passes.add(4, 20, asked, 5);
  ASSERT_EQ(passes.next().chunks.size(), 2U);
  passes.scheduler.computed();
  ASSERT_EQ(passes.pages(shares)[0], passes.pages(broken)[0]);
  passes.scheduler.discard(broken);
  EXPECT_TRUE(passes.pages(shares).empty());
  passes.scheduler.append_token(shares, 7);  // of this pass's logits, which are good
  const Chunk again = passes.pass().at(shares);
  EXPECT_EQ(again.begin, 0U);
  EXPECT_EQ(again.count, 4U);
  EXPECT_EQ(again.logits_begin, 4U);
  EXPECT_TRUE(passes.pass().at(shares).sample);
}

TEST(Scheduler, what_rests_on_discarded_pages_is_free_when_nobody_holds_it) {
  Passes passes(small_limits());
  const SequenceId broken = passes.add(5, 20, {}, 5);
  passes.pass();
  const SequenceId longer = passes.add(14, 20, {}, 5);
  while (!passes.first_sampled.contains(longer)) passes.pass();
  passes.scheduler.finish(longer);
  EXPECT_EQ(passes.scheduler.cache().idle_count(), 2U);
  passes.scheduler.discard(broken);
  EXPECT_EQ(passes.scheduler.cache().idle_count(), 0U);
  EXPECT_EQ(passes.scheduler.cache().pool().free_count(), 12U);
}

TEST(Scheduler, those_who_share_a_prefix_need_space_for_it_once) {
  Passes passes(small_limits());
  const SequenceId first = passes.add(33, 34, {}, 5);  // 9 of 12 pages, 8 of them to share
  while (!passes.first_sampled.contains(first)) passes.pass();
  const SequenceId second = passes.add(33, 34, {}, 5);
  const SequenceId third = passes.add(33, 34, {}, 5);
  const auto chunks = passes.pass();
  EXPECT_EQ(chunks.at(second).count, 1U);
  EXPECT_EQ(chunks.at(third).count, 1U);
  EXPECT_EQ(passes.scheduler.counters().preemptions, 0U);
}

TEST(Scheduler, what_is_evicted_is_the_end_of_a_prefix) {
  SchedulerLimits limits = small_limits();
  limits.page_count = 4;
  Passes passes(limits);
  const SequenceId first = passes.add(13, 14, {}, 5);
  passes.pass();
  passes.scheduler.finish(first);  // 3 pages are known, 1 is free
  const SequenceId other = passes.add(5, 6);
  passes.pass();
  passes.scheduler.finish(other);
  EXPECT_EQ(passes.scheduler.cache().eviction_count(), 1U);
  const SequenceId again = passes.add(13, 14, {}, 5);
  EXPECT_EQ(passes.pass().at(again).begin, 8U);
}

TEST(Scheduler, a_prefix_that_is_still_to_be_computed_needs_space_once) {
  Passes passes(small_limits());
  passes.add(33, 34, {}, 5);  // 9 of 12 pages
  passes.add(33, 34, {}, 5);
  passes.add(33, 34, {}, 5);
  passes.pass();
  EXPECT_EQ(passes.scheduler.running_count(), 3U);
  while (passes.first_sampled.size() < 3) {
    passes.pass();
    ASSERT_LT(passes.passes, 30U);
  }
  EXPECT_EQ(passes.scheduler.counters().prompt_tokens, 35U);
  EXPECT_EQ(passes.scheduler.counters().preemptions, 0U);
}

// Pages of a waiting sequence become space for others only if no other sequence holds them.
TEST(Scheduler, pages_that_one_who_waits_shares_are_no_space_for_others) {
  SchedulerLimits limits = small_limits();
  limits.sequence_count = 2;
  Passes passes(limits);
  const SequenceId runs = passes.add(33, 39, {}, 5);  // 9 of 12 pages
  while (!passes.first_sampled.contains(runs)) passes.pass();
  const SequenceId shares = passes.add(33, 39, of_tenant("", 1), 5);  // one more of its own
  while (!passes.first_sampled.contains(shares)) passes.pass();
  const SequenceId urgent = passes.add(2, 2);
  EXPECT_FALSE(passes.pass().contains(shares));
  passes.scheduler.finish(urgent);
  const SequenceId next = passes.add(13, 13);  // 4 pages
  passes.most[runs] = 3;
  while (passes.most[runs] > 0) {
    EXPECT_FALSE(passes.pass().contains(next));
    EXPECT_EQ(passes.pages(shares).size(), 9U);
  }
  EXPECT_EQ(passes.scheduler.counters().preemptions, 0U);
  EXPECT_TRUE(passes.pass().contains(next));
}

}  // namespace
}  // namespace lockstep
