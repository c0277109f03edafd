#include "engine/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "tests/engine/scheduler/passes.h"

namespace lockstep {
namespace {

TEST(Scheduler, a_prompt_is_cut_into_chunks_and_sampled_at_its_end) {
  Passes passes(small_limits());
  const SequenceId id = passes.add(20, 24);
  const Schedule first = passes.next();
  ASSERT_EQ(first.chunks.size(), 1U);
  EXPECT_EQ(first.chunks[0].count, 16U);
  EXPECT_TRUE(first.chunks[0].first);
  EXPECT_FALSE(first.chunks[0].sample);
  EXPECT_EQ(first.chunks[0].logits_begin, 16U);
  EXPECT_EQ(first.cleared_pages.size(), 4U);
  passes.scheduler.computed();
  const Chunk second = passes.pass().at(id);
  EXPECT_EQ(second.begin, 16U);
  EXPECT_EQ(second.count, 4U);
  EXPECT_EQ(second.logits_begin, 19U);
  EXPECT_TRUE(second.sample);
  EXPECT_FALSE(second.generated);
  const Chunk third = passes.pass().at(id);
  EXPECT_EQ(third.begin, 20U);
  EXPECT_EQ(third.count, 1U);
  EXPECT_TRUE(third.sample);
  EXPECT_TRUE(third.generated);
}

TEST(Scheduler, a_short_prompt_is_computed_as_generated_tokens_are_and_a_longer_one_never) {
  SchedulerLimits limits = small_limits();
  limits.share_generated = false;
  limits.short_prompt = limits.page_tokens - 1;
  limits.attention_units = 2;  // of two tokens
  Passes passes(limits);
  const SequenceId longer = passes.add(limits.short_prompt + 1, 8);
  const SequenceId shorter = passes.add(limits.short_prompt, 8);
  const Schedule first = passes.next();
  ASSERT_EQ(first.chunks.size(), 2U);
  EXPECT_EQ(first.chunks[0].sequence, shorter);  // of generated tokens first
  EXPECT_TRUE(first.chunks[0].generated);
  EXPECT_EQ(first.chunks[0].count, 2U);
  EXPECT_EQ(first.chunks[1].sequence, longer);
  EXPECT_FALSE(first.chunks[1].generated);
  passes.scheduler.computed();
  passes.scheduler.append_token(longer, 7);
  EXPECT_TRUE(passes.pass().at(shorter).generated);
}

TEST(Scheduler, a_running_stream_moves_in_every_pass_while_a_prompt_is_computed) {
  Passes passes(small_limits());
  const SequenceId stream = passes.add(2, 16);
  passes.pass();
  const SequenceId prompt = passes.add(20, 20);
  for (int pass = 0; pass < 5; ++pass) {
    const auto chunks = passes.pass();
    ASSERT_EQ(chunks.size(), 2U);
    EXPECT_EQ(chunks.at(stream).count, 1U);
    EXPECT_EQ(chunks.at(prompt).count, 4U);
  }
}

TEST(Scheduler, a_prompt_waits_for_pages_and_nobody_overtakes_it) {
  Passes passes(small_limits());
  const SequenceId large = passes.add(36, 40);  // 9 of 12 pages
  passes.pass();
  const SequenceId waits = passes.add(13, 16);  // 4: one too many
  const SequenceId small = passes.add(4, 4);    // would fit
  passes.pass();
  EXPECT_EQ(passes.scheduler.running_count(), 1U);
  EXPECT_EQ(passes.scheduler.waiting_count(), 2U);
  passes.scheduler.finish(large);
  const auto chunks = passes.pass();
  EXPECT_TRUE(chunks.contains(waits));
  EXPECT_TRUE(chunks.contains(small));
}

TEST(Scheduler, a_prompt_leaves_a_page_to_those_that_generate) {
  Passes passes(small_limits());
  const SequenceId runs = passes.add(33, 44);  // 9 of 12 pages
  while (!passes.first_sampled.contains(runs)) passes.pass();
  const SequenceId next = passes.add(12, 12);  // 3, which are free: but not for long
  EXPECT_FALSE(passes.pass().contains(next));
  EXPECT_EQ(passes.scheduler.counters().preemptions, 0U);
}

TEST(Scheduler, wanted_prompt_logits_bound_the_chunk_and_leave_space_for_others) {
  Passes passes(small_limits());
  NewSequence asked;
  asked.wanted = Wanted::kAllLogits;
  const SequenceId all = passes.add(12, 12, asked);
  const SequenceId other = passes.add(9, 9);
  const auto chunks = passes.pass();
  EXPECT_EQ(chunks.at(all).count, 3U);
  EXPECT_EQ(chunks.at(all).logits_begin, 0U);
  EXPECT_EQ(chunks.at(other).count, 9U);
}

TEST(Scheduler, hidden_rows_take_no_rows_of_logits_and_all_of_them_take_no_prefix) {
  SchedulerLimits limits = small_limits();
  limits.page_count = 40;
  limits.batch_tokens = 64;
  Passes passes(limits);
  NewSequence all;
  all.wanted = Wanted::kAllHidden;
  NewSequence last;
  last.wanted = Wanted::kLastHidden;
  const SequenceId first = passes.add(20, 20, all, 5);
  const SequenceId second = passes.add(20, 20, all, 5);
  const SequenceId third = passes.add(20, 20, last, 5);
  for (const SequenceId id : {first, second, third}) passes.most[id] = 1;  // they generate nothing
  const auto together = passes.pass();
  for (const SequenceId id : {first, second}) {
    EXPECT_EQ(together.at(id).begin, 0U);
    EXPECT_EQ(together.at(id).count, 20U);
    EXPECT_EQ(together.at(id).logits_begin, 20U);
    EXPECT_TRUE(together.at(id).sample);
  }
  // It waits for the very pages that the others compute.
  EXPECT_FALSE(together.contains(third));
  const Chunk rest = passes.pass().at(third);
  EXPECT_EQ(rest.begin, 16U);
  EXPECT_EQ(rest.logits_begin, 20U);
  EXPECT_EQ(passes.scheduler.counters().prefix_query_tokens, 20U);
}

TEST(Scheduler, whole_sequences_are_never_cut_and_share_no_pages) {
  SchedulerLimits limits = small_limits();
  limits.page_count = 12;
  limits.logit_rows = limits.batch_tokens;
  limits.whole_sequences = true;
  Passes passes(limits);
  passes.scheduler.limit_prompt_tokens({.alone = 1, .beside_streams = 1, .work_alone = 1});
  NewSequence all;
  all.wanted = Wanted::kAllLogits;
  const SequenceId first = passes.add(13, 13, all, 5);
  const SequenceId second = passes.add(9, 9, all, 5);  // no place beside the first
  const SequenceId third = passes.add(3, 3, all, 5);
  for (const SequenceId id : {first, second, third}) passes.most[id] = 1;
  const auto together = passes.pass();
  EXPECT_EQ(together.at(first).count, 13U);
  EXPECT_EQ(together.at(first).logits_begin, 0U);
  EXPECT_TRUE(together.at(first).sample);
  EXPECT_FALSE(together.contains(second));
  EXPECT_EQ(together.at(third).count, 3U);
  // No page of those that begin alike is found.
  const Chunk next = passes.pass().at(second);
  EXPECT_EQ(next.begin, 0U);
  EXPECT_EQ(next.count, 9U);
  EXPECT_EQ(passes.scheduler.counters().prefix_hit_tokens, 0U);
  EXPECT_TRUE(passes.scheduler.idle());
}

// One that steps aside keeps its state while a slot is left for the one that takes its place.
TEST(Scheduler, a_state_is_kept_while_a_sequence_waits_until_another_needs_its_slot) {
  for (const size_t slots : {2U, 1U}) {
    SchedulerLimits limits = small_limits();
    limits.sequence_count = 1;
    limits.state_slots = slots;
    Passes passes(limits);
    const SequenceId first = passes.add(8, 20);
    passes.most[first] = 4;
    EXPECT_EQ(passes.pass().at(first).begin, 0U);
    EXPECT_TRUE(passes.scheduler.state(first).has_value());
    const SequenceId urgent = passes.add(4, 8, of_tenant("b", /*priority=*/-1));
    passes.most[urgent] = 1;
    EXPECT_TRUE(passes.pass().contains(urgent));
    EXPECT_EQ(passes.scheduler.state(first).has_value(), slots == 2);
    // Without its state, and with no slot for a checkpoint, all of its tokens are computed again,
    // though its pages were free to stay.
    EXPECT_EQ(passes.pass().at(first).begin, slots == 2 ? 8U : 0U);
    EXPECT_EQ(passes.scheduler.counters().preemptions, slots == 2 ? 0U : 1U);
  }
}

TEST(Scheduler, a_whole_sequence_waits_for_all_of_its_pages) {
  SchedulerLimits limits = small_limits();
  limits.page_count = 5;  // of 4 tokens
  limits.logit_rows = limits.batch_tokens = 32;
  limits.whole_sequences = true;
  Passes passes(limits);
  std::vector<SequenceId> ids;
  for (const size_t length : {11U, 10U, 19U, 4U}) ids.push_back(passes.add(length, length));
  for (const SequenceId id : ids) passes.most[id] = 1;
  size_t computed = 0;
  for (int pass = 0; pass < 8 && !passes.scheduler.idle(); ++pass) {
    for (const auto& [id, chunk] : passes.pass()) {
      EXPECT_EQ(chunk.begin, 0U);
      EXPECT_TRUE(chunk.sample);
      computed += chunk.count;
    }
  }
  EXPECT_TRUE(passes.scheduler.idle());
  EXPECT_EQ(computed, 44U);
}

TEST(Scheduler, without_pages_the_worst_and_latest_gives_way_and_keeps_its_tokens) {
  SchedulerLimits limits = small_limits();
  limits.page_count = 6;
  limits.share_generated = false;
  Passes passes(limits);
  const SequenceId first = passes.add(4, 19);
  const SequenceId urgent = passes.add(4, 8, of_tenant("", -1));
  const SequenceId last = passes.add(4, 20);
  // 4 tokens of each need 3 pages, 5 to 8 need 6; then the first needs one more.
  while (passes.scheduler.counters().preemptions == 0) {
    const auto chunks = passes.pass();
    if (chunks.contains(urgent) && chunks.at(urgent).begin == 7) passes.scheduler.finish(urgent);
    ASSERT_LT(passes.passes, 30U);
  }
  EXPECT_TRUE(passes.pages(last).empty());
  EXPECT_FALSE(passes.pages(first).empty());
  // It comes back when there is space: its prompt (the page may still be known), then what it had
  // generated in one chunk of its own.
  passes.scheduler.finish(first);
  std::vector<Chunk> chunks;
  do {
    chunks.push_back(passes.pass().at(last));
  } while (!chunks.back().sample);
  EXPECT_GT(chunks.back().count, 1U);
  EXPECT_EQ(chunks.back().begin, 4U);
  EXPECT_TRUE(chunks.back().generated);
  EXPECT_EQ(chunks.back().logits_begin, chunks.back().begin + chunks.back().count - 1);
}

// How many generated tokens are computed again at a time, by where they begin. Attention to them
// has space for five units, and a token takes a unit for every four keys, up to `token_units_max`.
std::map<size_t, size_t> computed_again(size_t token_units_max) {
  SchedulerLimits limits = small_limits();
  limits.page_count = 6;
  limits.share_generated = false;
  limits.attention_units = 5;
  limits.unit_keys = 4;
  limits.token_units_max = token_units_max;
  Passes passes(limits);
  const SequenceId first = passes.add(4, 19);
  const SequenceId last = passes.add(4, 20);
  while (passes.scheduler.counters().preemptions == 0 && passes.passes < 30) passes.pass();
  passes.scheduler.finish(first);
  std::map<size_t, size_t> counts;
  bool sampled = false;
  while (!sampled && passes.passes < 60) {
    const Chunk chunk = passes.pass().at(last);
    if (chunk.generated) counts[chunk.begin] = chunk.count;
    sampled = chunk.sample;
  }
  EXPECT_TRUE(sampled);
  return counts;
}

TEST(Scheduler, what_was_generated_is_computed_again_as_far_as_attention_has_space) {
  const auto counts = computed_again(std::numeric_limits<size_t>::max());
  EXPECT_EQ(counts.at(4), 2U);
  EXPECT_EQ(counts.at(6), 2U);
  EXPECT_EQ(counts.at(8), 1U);
  EXPECT_EQ(counts.at(9), 1U);
  EXPECT_EQ(computed_again(2).at(8), 2U);
}

// Found in the cache, most of a prompt costs nothing; what is left sees many keys.
TEST(Scheduler, a_chunk_deep_in_a_prompt_is_small_and_leaves_space_to_short_prompts) {
  SchedulerLimits limits;
  limits.page_count = 1000;
  limits.sequence_count = 3;
  Passes passes(limits, limits.batch_tokens);
  const SequenceId first = passes.add(20'000, 20'000, {}, 5);
  passes.most[first] = 1;
  while (passes.scheduler.running_count() > 0 || passes.passes == 0) passes.pass();
  const auto allow = [&](double work) {
    passes.scheduler.limit_prompt_tokens({512, 512, work, work});
  };
  allow(prompt_work(0, 512));
  const SequenceId deep = passes.add(30'000, 30'000, {}, 5);
  const SequenceId small = passes.add(100, 110);
  auto chunks = passes.pass();
  EXPECT_GT(chunks.at(deep).begin, 19'000U);
  EXPECT_EQ(chunks.at(deep).count, kPromptChunkLeast);
  EXPECT_EQ(chunks.at(small).count, 100U);
  passes.scheduler.finish(small);
  allow(prompt_work(20'000, 100));
  chunks = passes.pass();
  EXPECT_NEAR(static_cast<double>(chunks.at(deep).count), 100, 2);
}

TEST(Scheduler, a_better_priority_goes_first_and_takes_a_place) {
  Passes passes(small_limits());
  std::vector<SequenceId> running;
  for (int index = 0; index < 3; ++index) running.push_back(passes.add(2, 20));
  const SequenceId waiting = passes.add(2, 20);
  passes.pass();
  const SequenceId urgent = passes.add(2, 20, of_tenant("", -5));
  auto chunks = passes.pass();
  EXPECT_TRUE(chunks.contains(urgent));
  EXPECT_FALSE(chunks.contains(running[2]));  // the latest steps aside, and keeps its pages
  EXPECT_FALSE(passes.pages(running[2]).empty());
  passes.scheduler.finish(urgent);
  chunks = passes.pass();
  EXPECT_EQ(chunks.at(running[2]).count, 1U);
  EXPECT_FALSE(chunks.contains(waiting));
  EXPECT_EQ(passes.scheduler.counters().preemptions, 0U);
}

TEST(Scheduler, a_low_priority_runs_once_it_has_waited_long) {
  SchedulerLimits limits = small_limits();
  limits.sequence_count = 1;
  limits.patience_seconds = 60;
  Passes passes(limits);
  const SequenceId low = passes.add(2, 20, of_tenant("", 1000));
  for (passes.now = 0; passes.now < 60; ++passes.now) {
    const SequenceId urgent = passes.add(2, 2, of_tenant("", -1000));
    passes.most[urgent] = 1;
    EXPECT_FALSE(passes.pass().contains(low)) << passes.now;
  }
  passes.most[passes.add(2, 2, of_tenant("", -1000))] = 1;
  EXPECT_TRUE(passes.pass().contains(low));
}

TEST(Scheduler, deadlines_are_told_when_they_are_over) {
  Passes passes(small_limits());
  NewSequence asked;
  asked.deadline = 10;
  const SequenceId soon = passes.add(2, 4, asked);
  asked.deadline = 20;
  const SequenceId later = passes.add(2, 4, asked);
  passes.add(2, 4);
  EXPECT_TRUE(passes.scheduler.overdue(9).empty());
  EXPECT_EQ(passes.scheduler.overdue(10), std::vector{soon});
  EXPECT_EQ(passes.scheduler.overdue(20), (std::vector{soon, later}));
  passes.scheduler.finish(soon);
  EXPECT_EQ(passes.scheduler.overdue(20), std::vector{later});
}

TEST(Scheduler, a_prompt_that_can_end_in_this_pass_is_not_held_up_by_a_long_one) {
  SchedulerLimits limits = small_limits();
  limits.page_count = 100;
  Passes passes(limits);
  const SequenceId long_one = passes.add(100, 100);
  passes.pass();
  const SequenceId short_one = passes.add(6, 6);
  const SequenceId middle = passes.add(12, 12);
  const auto chunks = passes.pass();
  EXPECT_EQ(chunks.at(short_one).count, 6U);
  EXPECT_EQ(chunks.at(long_one).count, 10U);
  EXPECT_FALSE(chunks.contains(middle));
}

TEST(Scheduler, ending_one_that_waits_changes_nothing_for_those_that_run) {
  const auto chunks_of_running = [](bool cancel) {
    Passes passes(small_limits());
    std::vector<SequenceId> running;
    for (int index = 0; index < 3; ++index) running.push_back(passes.add(6, 14));
    std::vector<std::vector<size_t>> moves;
    for (int pass = 0; pass < 8; ++pass) {
      const SequenceId waiting = passes.add(6, 14);
      const auto chunks = passes.pass();
      for (const SequenceId id : running) {
        moves.push_back({id, chunks.at(id).begin, chunks.at(id).count});
        for (const uint32_t page : passes.pages(id)) moves.back().push_back(page);
      }
      if (cancel) passes.scheduler.finish(waiting);
    }
    for (auto& move : moves) move[0] = move[0] > 3 ? 0 : move[0];
    return moves;
  };
  EXPECT_EQ(chunks_of_running(true), chunks_of_running(false));
}

TEST(Scheduler, a_tenant_without_a_place_gets_its_share_of_them) {
  Passes passes(small_limits());
  std::vector<SequenceId> many;
  for (int index = 0; index < 6; ++index) many.push_back(passes.add(2, 20, of_tenant("many")));
  passes.pass();
  const SequenceId first = passes.add(2, 20, of_tenant("few"));
  const SequenceId second = passes.add(2, 20, of_tenant("few"));
  for (int pass = 0; pass < 3; ++pass) {
    const auto chunks = passes.pass();
    EXPECT_TRUE(chunks.contains(many[0]) && chunks.contains(many[1]) && chunks.contains(first));
    EXPECT_FALSE(chunks.contains(second));  // two places for one, one for the other: even enough
  }
  EXPECT_FALSE(passes.pages(many[2]).empty());
}

TEST(Scheduler, who_had_fewer_tokens_is_next_whoever_came_first) {
  SchedulerLimits limits = small_limits();
  limits.sequence_count = 1;
  Passes passes(limits);
  std::vector<SequenceId> order;
  for (int index = 0; index < 4; ++index) {
    passes.most[passes.add(4, 8, of_tenant("many"))] = 3;
  }
  for (int index = 0; index < 2; ++index) passes.most[passes.add(4, 8, of_tenant("few"))] = 3;
  while (!passes.scheduler.idle()) {
    for (const auto& [id, chunk] : passes.pass()) {
      if (chunk.first) order.push_back(id);
    }
  }
  EXPECT_EQ(order, (std::vector<SequenceId>{1, 5, 2, 6, 3, 4}));
}

// The one that sends little has one short request at a time; how long does it wait, in passes, for
// its first token beside somebody who sends as much, and beside somebody who sends ten times that?
TEST(Scheduler, a_tenants_flood_delays_others_by_no_more_than_twice) {
  using Tenants = NewSequence (*)(const std::string&);
  const auto mean_wait = [](size_t flood, Tenants of) {
    SchedulerLimits limits = small_limits();
    limits.page_count = 400;
    limits.sequence_count = 8;
    limits.logit_rows = 8;
    limits.batch_tokens = 64;
    Passes passes(limits, 16);
    size_t waited = 0;
    size_t asked = 0;
    std::optional<SequenceId> own;
    size_t since = 0;
    while (asked < 50) {
      if (passes.passes % 24 == 0) {
        for (size_t request = 0; request < flood; ++request) {
          passes.most[passes.add(30, 60, of("flood"))] = 20;
        }
      }
      if (!own && passes.passes % 24 == 5) {
        own = passes.add(30, 60, of("little"));
        passes.most[*own] = 10;
        since = passes.passes;
      }
      passes.pass();
      if (own && passes.first_sampled.contains(*own) && since != 0) {
        waited += passes.first_sampled[*own] - since;
        ++asked;
        since = 0;
      }
      if (own && passes.most[*own] == 0) own.reset();
    }
    return static_cast<double>(waited) / static_cast<double>(asked);
  };
  const Tenants with_keys = [](const std::string& owner) { return of_tenant(owner); };
  for (const Tenants of : {with_keys, Tenants{of_site}}) {
    SCOPED_TRACE(of == with_keys ? "owners of keys" : "sites without keys");
    EXPECT_LE(mean_wait(10, of), 2 * mean_wait(1, of));
  }
}

}  // namespace
}  // namespace lockstep
