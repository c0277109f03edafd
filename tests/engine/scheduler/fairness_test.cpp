// Tests how tenants are charged, who goes next by that, and who gives up pages.
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/scheduler/passes.h"

namespace lockstep {
namespace {

TEST(FairQueue, what_is_admitted_is_charged_and_starts_behind_what_was_before) {
  FairQueue queue;
  FairQueue::Tenant& tenant = queue.enter("a", {});
  EXPECT_EQ(queue.admit(tenant, 10), 0);
  EXPECT_EQ(queue.admit(tenant, 5), 10);
  EXPECT_EQ(queue.admit(tenant, 0), 15);
}

// However little it has had: otherwise one that comes late would be served alone for a long time.
TEST(FairQueue, who_comes_anew_starts_where_the_others_are) {
  FairQueue queue;
  FairQueue::Tenant& busy = queue.enter("busy", {});
  for (int request = 0; request < 3; ++request) queue.admit(busy, 100);
  EXPECT_EQ(queue.admit(queue.enter("nobody waits", {}), 1), 200);
  EXPECT_EQ(queue.admit(queue.enter("others run", 150.0), 1), 150);
  busy.tag = 170;
  queue.add(busy, {.id = 1});
  EXPECT_EQ(queue.admit(queue.enter("others wait", 190.0), 1), 170);
  EXPECT_EQ(queue.heads().front().start, 170);
}

TEST(FairQueue, a_tenant_that_leaves_keeps_its_debt_while_others_are_there) {
  FairQueue queue;
  queue.enter("other", {});
  queue.admit(queue.enter("a", {}), 500);
  queue.leave("a");
  EXPECT_EQ(queue.admit(queue.enter("a", {}), 1), 500);
  queue.leave("a");
  queue.leave("other");
  EXPECT_EQ(queue.admit(queue.enter("a", {}), 1), 0);
}

SchedulerLimits wide_limits(size_t sequence_count) {
  SchedulerLimits limits = small_limits();
  limits.page_count = 400;
  limits.sequence_count = sequence_count;
  return limits;
}

TEST(Fairness, who_comes_while_others_prompts_are_computed_is_as_far_as_the_least_of_them) {
  Passes passes(wide_limits(3), 16);
  const SequenceId first = passes.add(40, 40, of_tenant("many"));
  const SequenceId second = passes.add(40, 40, of_tenant("many"));
  EXPECT_EQ(passes.pass().at(first).count, 16U);
  const SequenceId other = passes.add(40, 40, of_tenant("few"));
  EXPECT_EQ(passes.pass().at(first).count, 16U);
  const auto chunks = passes.pass();
  EXPECT_EQ(chunks.at(first).count, 8U);
  EXPECT_TRUE(chunks.contains(other));
  EXPECT_FALSE(chunks.contains(second));
}

TEST(Fairness, generated_tokens_are_charged) {
  Passes passes(wide_limits(3), 2);
  passes.add(50, 100, of_tenant("talks"));
  while (passes.first_sampled.empty()) passes.pass();
  const SequenceId filler = passes.add(1, 60, of_tenant("filler"));
  passes.add(60, 90, of_tenant("reads"));  // for thirty passes
  passes.pass();
  const SequenceId talks = passes.add(4, 4, of_tenant("talks"));  // 50 so far,
  const SequenceId reads = passes.add(4, 4, of_tenant("reads"));  // and 60
  for (int pass = 0; pass < 20; ++pass) passes.pass();
  passes.scheduler.finish(filler);
  while (!passes.first_sampled.contains(reads)) {
    EXPECT_FALSE(passes.pass().contains(talks));
    ASSERT_LT(passes.passes, 60U);
  }
}

TEST(Fairness, prompt_tokens_that_were_found_after_all_are_given_back) {
  SchedulerLimits limits = wide_limits(3);
  limits.batch_tokens = 64;
  Passes passes(limits, 16);
  passes.add(20, 40, of_tenant("other"));
  passes.add(13, 40, of_tenant("same"), 5);
  const SequenceId again = passes.add(13, 40, of_tenant("same"), 5);
  EXPECT_EQ(passes.pass().size(), 2U);  // charged so far: 20 and 26
  const SequenceId others = passes.add(4, 4, of_tenant("other"));
  const SequenceId same = passes.add(4, 4, of_tenant("same"));
  EXPECT_EQ(passes.pass().at(again).begin, 12U);  // 12 of the 26 were not computed
  passes.scheduler.finish(again);
  const auto chunks = passes.pass();
  EXPECT_TRUE(chunks.contains(same));
  EXPECT_FALSE(chunks.contains(others));
}

TEST(Fairness, prompt_tokens_that_were_never_computed_are_given_back) {
  Passes passes(wide_limits(3), 16);
  passes.add(100, 140, of_tenant("other"));
  while (passes.first_sampled.empty()) passes.pass();
  passes.add(4, 40, of_tenant("cancels"));
  passes.pass();
  const SequenceId cancelled = passes.add(500, 500, of_tenant("cancels"));
  EXPECT_EQ(passes.pass().at(cancelled).count, 14U);
  const SequenceId others = passes.add(4, 4, of_tenant("other"));
  const SequenceId next = passes.add(4, 4, of_tenant("cancels"));
  passes.scheduler.finish(cancelled);  // 14 of 500
  const auto chunks = passes.pass();
  EXPECT_TRUE(chunks.contains(next));
  EXPECT_FALSE(chunks.contains(others));
}

TEST(Fairness, of_those_that_run_the_last_gives_up_its_pages) {
  SchedulerLimits limits = small_limits();
  limits.page_count = 6;
  limits.share_generated = false;
  Passes passes(limits);
  std::vector<SequenceId> ids;
  for (int index = 0; index < 3; ++index) ids.push_back(passes.add(4, 12));
  // 2 pages each, then the first one needs a third.
  while (passes.scheduler.counters().preemptions == 0) {
    passes.pass();
    ASSERT_LT(passes.passes, 30U);
  }
  EXPECT_EQ(passes.pages(ids[0]).size(), 3U);
  EXPECT_FALSE(passes.pages(ids[1]).empty());
  EXPECT_TRUE(passes.pages(ids[2]).empty());
}

TEST(Fairness, of_those_that_wait_the_last_gives_up_its_pages) {
  SchedulerLimits limits = small_limits();
  limits.page_count = 8;
  Passes passes(limits, 16);
  std::vector<SequenceId> ids;
  for (int index = 0; index < 3; ++index) ids.push_back(passes.add(4, 12));
  while (passes.scheduler.cache().pool().free_count() > 2) passes.pass();
  const SequenceId urgent = passes.add(7, 16, of_tenant("", -1));
  const SequenceId too = passes.add(7, 16, of_tenant("", -1));
  EXPECT_EQ(passes.pass().at(urgent).count, 7U);
  EXPECT_EQ(passes.pages(too).size(), 2U);
  EXPECT_EQ(passes.scheduler.counters().preemptions, 1U);
  EXPECT_FALSE(passes.pages(ids[1]).empty());
  EXPECT_TRUE(passes.pages(ids[2]).empty());
}

}  // namespace
}  // namespace lockstep
