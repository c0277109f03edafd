// Sequences with states go on from checkpoints: where these are taken, found, copied, and lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/engine/scheduler/passes.h"

namespace lockstep {
namespace {

SchedulerLimits limits_with_states(size_t slots) {
  SchedulerLimits limits = small_limits();  // pages of 4 tokens
  limits.page_count = 200;
  limits.batch_tokens = 128;
  limits.state_slots = slots;
  return limits;
}

// `same` tokens that all such prompts begin with, then others up to `count`.
NewSequence prompt_of(size_t same, size_t count, int32_t others) {
  NewSequence asked;
  for (size_t token = 0; token < count; ++token) {
    asked.prompt.push_back(static_cast<int32_t>(token) + (token < same ? 0 : others));
  }
  asked.most_tokens = count + 40;
  return asked;
}

// A prompt is computed as if there were no checkpoints: so many passes. Then it ends. The tokens
// behind which checkpoints were left meanwhile.
std::vector<size_t> checkpoint_ends(Passes& passes, const NewSequence& asked,
                                    size_t pass_count = 1) {
  const SequenceId id = passes.scheduler.add(asked, 0);
  passes.most[id] = 1;
  const size_t passes_before = passes.passes;
  std::vector<size_t> ends;
  while (!passes.scheduler.idle()) {
    const Chunk chunk = passes.pass().at(id);
    for (const size_t end : passes.checkpoints[id]) {
      EXPECT_TRUE(end > chunk.begin && end <= chunk.begin + chunk.count) << end;
      ends.push_back(end);
    }
  }
  EXPECT_EQ(passes.passes - passes_before, pass_count);
  return ends;
}

TEST(Checkpoints, are_left_at_a_prompts_last_border_and_at_distances_that_double) {
  for (const auto& [batch_tokens, pass_count] :
       {std::pair(128U, 1U), {82U, 1U}, {48U, 2U}, {5U, 17U}}) {
    SCOPED_TRACE(batch_tokens);
    SchedulerLimits limits = limits_with_states(20);
    limits.batch_tokens = batch_tokens;
    Passes passes(limits, batch_tokens);
    EXPECT_EQ(checkpoint_ends(passes, prompt_of(82, 82, 0), pass_count),
              (std::vector<size_t>{32, 48, 64, 80}));
    EXPECT_EQ(passes.scheduler.slots().checkpoint_count(), 4U);
    EXPECT_TRUE(passes.copies.empty());
  }
  Passes passes(limits_with_states(20), 128);
  // Few tokens are computed again as fast.
  EXPECT_EQ(checkpoint_ends(passes, prompt_of(0, 7, 500)), std::vector<size_t>());
  EXPECT_EQ(checkpoint_ends(passes, prompt_of(0, 9, 600)), std::vector<size_t>{8});
  EXPECT_EQ(checkpoint_ends(passes, prompt_of(0, 16, 700)), std::vector<size_t>{16});
  // None without states.
  Passes without(limits_with_states(0), 128);
  EXPECT_EQ(checkpoint_ends(without, prompt_of(82, 82, 0)), std::vector<size_t>());
}

TEST(Checkpoints, of_a_prompt_are_as_many_as_there_are_slots) {
  SchedulerLimits limits = limits_with_states(3);
  limits.sequence_count = 1;
  Passes passes(limits, 128);
  // The end comes first.
  EXPECT_EQ(checkpoint_ends(passes, prompt_of(82, 82, 0)), (std::vector<size_t>{64, 80}));
  EXPECT_EQ(passes.scheduler.slots().checkpoint_count(), 2U);
  // Those of a prompt before it make way.
  EXPECT_EQ(checkpoint_ends(passes, prompt_of(0, 82, 500)), (std::vector<size_t>{64, 80}));
  EXPECT_EQ(passes.scheduler.slots().checkpoint_count(), 2U);
}

// Rows of all tokens are asked for, so all are computed again; what they leave is there.
TEST(Checkpoints, that_are_there_take_no_slots) {
  Passes passes(limits_with_states(7), 128);
  EXPECT_EQ(checkpoint_ends(passes, prompt_of(82, 82, 0)), (std::vector<size_t>{32, 48, 64, 80}));
  for (int turn = 0; turn < 3; ++turn) {
    NewSequence again = prompt_of(82, 82, 0);
    again.wanted = Wanted::kAllHidden;
    again.most_tokens = 82;
    EXPECT_EQ(checkpoint_ends(passes, again), std::vector<size_t>());
  }
  EXPECT_EQ(passes.scheduler.counters().prompt_tokens, 4 * 82U);
  EXPECT_EQ(passes.scheduler.slots().checkpoint_count(), 4U);
  EXPECT_EQ(passes.scheduler.slots().eviction_count(), 0U);
  EXPECT_EQ(passes.scheduler.slots().pool().free_count(), 3U);
}

// Two prompts that are alike come to the same end in one pass: the last page is computed by each.
TEST(Checkpoints, of_one_block_become_one) {
  Passes passes(limits_with_states(20), 128);
  const SequenceId first = passes.scheduler.add(prompt_of(8, 8, 0), 0);
  const SequenceId second = passes.scheduler.add(prompt_of(8, 8, 0), 0);
  passes.pass();
  EXPECT_EQ(passes.checkpoints[first], std::vector<size_t>{8});
  EXPECT_EQ(passes.checkpoints[second], std::vector<size_t>{8});
  EXPECT_EQ(passes.scheduler.slots().checkpoint_count(), 1U);
  EXPECT_EQ(passes.scheduler.slots().pool().free_count(), 17U);  // two are the sequences' own
}

TEST(Checkpoints, are_gone_on_from_wherever_a_prompt_is_edited) {
  for (size_t same = 0; same <= 82; ++same) {
    SCOPED_TRACE(same);
    Passes passes(limits_with_states(20), 128);
    checkpoint_ends(passes, prompt_of(82, 82, 0));
    size_t expected = 0;
    for (const size_t end : {32U, 48U, 64U, 80U}) expected = end <= same ? end : expected;
    const SequenceId id = passes.scheduler.add(prompt_of(same, 82, 1000), 0);
    const Chunk chunk = passes.pass().at(id);
    EXPECT_EQ(chunk.begin, expected);
    EXPECT_EQ(passes.scheduler.cached_tokens(id), expected);
    EXPECT_EQ(passes.scheduler.counters().state_hits, expected > 0 ? 1U : 0U);
    ASSERT_EQ(passes.copies.size(), expected > 0 ? 1U : 0U);
    if (expected == 0) continue;
    EXPECT_EQ(passes.copies.front().to, passes.scheduler.state(id));
    EXPECT_NE(passes.scheduler.slots().block(passes.copies.front().from), 0U);
  }
}

TEST(Checkpoints, are_taken_where_two_prompts_part) {
  Passes passes(limits_with_states(20), 128);
  EXPECT_EQ(checkpoint_ends(passes, prompt_of(40, 60, 1000)), (std::vector<size_t>{32, 60}));
  // The pages up to 40 are known, the state is not.
  EXPECT_EQ(checkpoint_ends(passes, prompt_of(40, 60, 2000)), (std::vector<size_t>{40, 60}));
  const SequenceId third = passes.scheduler.add(prompt_of(40, 60, 3000), 0);
  EXPECT_EQ(passes.pass().at(third).begin, 40U);
}

TEST(Checkpoints, move_on_with_an_answer_and_stay_at_its_last_border) {
  for (const bool share_generated : {true, false}) {
    SchedulerLimits limits = limits_with_states(20);
    limits.share_generated = share_generated;
    Passes passes(limits, 128);
    const SequenceId id = passes.scheduler.add(prompt_of(10, 10, 0), 0);
    passes.most[id] = 32;
    while (!passes.scheduler.idle()) passes.pass();  // the last pass computes token 40
    // Behind 8 prompted tokens; behind 32, which is far enough from the start; behind 40.
    EXPECT_EQ(passes.scheduler.slots().checkpoint_count(), share_generated ? 3U : 1U);
    NewSequence next = prompt_of(10, 10, 0);
    next.prompt.resize(41, 7);  // as Passes generates
    next.prompt.resize(60, 8);
    next.most_tokens = 61;
    const SequenceId second = passes.scheduler.add(next, 0);
    EXPECT_EQ(passes.pass().at(second).begin, share_generated ? 40U : 8U);
  }
}

TEST(Checkpoints, of_one_answer_are_waited_for_by_the_others_to_the_same_prompt) {
  Passes passes(limits_with_states(20), 128);
  std::vector<SequenceId> ids;
  for (int answer = 0; answer < 3; ++answer) {
    ids.push_back(passes.scheduler.add(prompt_of(42, 42, 0), 0));
  }
  const auto first = passes.pass();
  EXPECT_EQ(first.size(), 1U);
  EXPECT_EQ(first.at(ids.front()).count, 42U);
  const auto second = passes.pass();
  EXPECT_EQ(second.at(ids[0]).begin, 42U);  // its answer
  for (const SequenceId id : {ids[1], ids[2]}) EXPECT_EQ(second.at(id).begin, 40U);
  EXPECT_EQ(passes.scheduler.counters().prompt_tokens, 46U);
  EXPECT_EQ(passes.copies.size(), 2U);
}

TEST(Checkpoints, are_where_a_sequence_that_gave_up_its_pages_goes_on) {
  SchedulerLimits limits = limits_with_states(20);
  limits.page_count = 8;
  Passes passes(limits, 128);
  NewSequence asked = prompt_of(0, 8, 1000);
  asked.most_tokens = 28;
  const SequenceId first = passes.scheduler.add(asked, 0);
  asked = prompt_of(0, 17, 2000);
  asked.most_tokens = 24;
  const SequenceId last = passes.scheduler.add(asked, 0);
  while (passes.scheduler.counters().preemptions == 0) {
    ASSERT_LT(passes.passes, 30U);
    passes.pass();
  }
  EXPECT_TRUE(passes.pages(last).empty());
  passes.scheduler.finish(first);
  EXPECT_EQ(passes.pass().at(last).begin, 16U);
  EXPECT_EQ(passes.scheduler.counters().state_hits, 1U);
}

TEST(Checkpoints, make_way_for_sequences_before_these_give_up_their_own_states) {
  SchedulerLimits limits = limits_with_states(3);
  limits.sequence_count = 1;
  Passes passes(limits, 128);
  checkpoint_ends(passes, prompt_of(0, 18, 1000));
  EXPECT_EQ(passes.scheduler.slots().checkpoint_count(), 1U);
  std::vector<SequenceId> ids;
  for (int32_t number = 0; number < 3; ++number) {  // each steps aside for the next
    NewSequence asked = prompt_of(0, 6, 2000 * (number + 1));
    asked.priority = -number;
    ids.push_back(passes.scheduler.add(asked, 0));
    EXPECT_TRUE(passes.pass().contains(ids.back()));
  }
  for (const SequenceId id : ids) EXPECT_TRUE(passes.scheduler.state(id).has_value());
  EXPECT_EQ(passes.scheduler.slots().checkpoint_count(), 0U);
  EXPECT_EQ(passes.scheduler.counters().preemptions, 0U);
}

TEST(Checkpoints, become_a_sequences_own_slot_where_no_other_is_left) {
  SchedulerLimits limits = limits_with_states(2);
  limits.sequence_count = 2;
  Passes passes(limits, 128);
  checkpoint_ends(passes, prompt_of(16, 18, 1000));
  ASSERT_EQ(passes.scheduler.slots().checkpoint_count(), 1U);
  const SequenceId first = passes.scheduler.add(prompt_of(16, 18, 2000), 0);
  const SequenceId second = passes.scheduler.add(prompt_of(16, 18, 3000), 0);
  const auto chunks = passes.pass();
  EXPECT_EQ(chunks.at(first).begin, 16U);
  EXPECT_EQ(chunks.at(second).begin, 16U);
  EXPECT_EQ(passes.copies.back(),
            (SlotCopy{*passes.scheduler.state(second), *passes.scheduler.state(first)}));
  EXPECT_EQ(passes.scheduler.slots().checkpoint_count(), 0U);
}

}  // namespace
}  // namespace lockstep
