#include "engine/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace lockstep {
namespace {

SchedulerLimits small_limits() {
  SchedulerLimits limits;
  limits.page_tokens = 4;
  limits.page_count = 12;
  limits.sequence_count = 3;
  limits.batch_tokens = 16;
  limits.mixed_prompt_tokens = 4;
  limits.logit_rows = 5;
  return limits;
}

TEST(Scheduler, a_prompt_is_cut_into_chunks_and_sampled_at_its_end) {
  Scheduler scheduler(small_limits());
  const SequenceId id = scheduler.add(20, 24, false);
  const Schedule first = scheduler.next_batch();
  ASSERT_EQ(first.chunks.size(), 1U);
  EXPECT_EQ(first.chunks[0].count, 16U);
  EXPECT_TRUE(first.chunks[0].first);
  EXPECT_FALSE(first.chunks[0].sample);
  EXPECT_EQ(first.cleared_pages.size(), 4U);
  scheduler.computed();
  const Schedule second = scheduler.next_batch();
  ASSERT_EQ(second.chunks.size(), 1U);
  EXPECT_EQ(second.chunks[0].begin, 16U);
  EXPECT_EQ(second.chunks[0].count, 4U);
  EXPECT_TRUE(second.chunks[0].sample);
  scheduler.computed();
  scheduler.append_token(id);
  const Schedule third = scheduler.next_batch();
  ASSERT_EQ(third.chunks.size(), 1U);
  EXPECT_EQ(third.chunks[0].begin, 20U);
  EXPECT_EQ(third.chunks[0].count, 1U);
  EXPECT_TRUE(third.chunks[0].sample);
}

TEST(Scheduler, a_running_stream_moves_in_every_pass_while_a_prompt_is_computed) {
  Scheduler scheduler(small_limits());
  const SequenceId stream = scheduler.add(2, 16, false);
  scheduler.next_batch();
  scheduler.computed();
  scheduler.append_token(stream);
  scheduler.add(20, 20, false);
  for (int pass = 0; pass < 5; ++pass) {
    const Schedule& schedule = scheduler.next_batch();
    ASSERT_EQ(schedule.chunks.size(), 2U);
    EXPECT_EQ(schedule.chunks[0].sequence, stream);
    EXPECT_EQ(schedule.chunks[1].count, 4U);
    scheduler.computed();
    scheduler.append_token(stream);
  }
}

TEST(Scheduler, a_sequence_waits_for_pages_and_nobody_overtakes_it) {
  Scheduler scheduler(small_limits());
  const SequenceId large = scheduler.add(4, 36, false);  // 9 of 12 pages
  const SequenceId waits = scheduler.add(4, 16, false);  // 4: one too many
  const SequenceId small = scheduler.add(4, 4, false);   // would fit
  scheduler.next_batch();
  scheduler.computed();
  EXPECT_EQ(scheduler.running_count(), 1U);
  EXPECT_EQ(scheduler.waiting_count(), 2U);
  scheduler.finish(large);
  const Schedule& schedule = scheduler.next_batch();
  ASSERT_EQ(schedule.chunks.size(), 2U);
  EXPECT_EQ(schedule.chunks[0].sequence, waits);
  EXPECT_EQ(schedule.chunks[1].sequence, small);
}

TEST(Scheduler, wanted_prompt_logits_bound_the_chunk_and_leave_room_for_others) {
  Scheduler scheduler(small_limits());
  scheduler.add(12, 12, true);
  scheduler.add(9, 9, false);
  const Schedule& schedule = scheduler.next_batch();
  ASSERT_EQ(schedule.chunks.size(), 2U);
  EXPECT_EQ(schedule.chunks[0].count, 3U);
  EXPECT_EQ(schedule.chunks[1].count, 9U);
}

// One random life of the scheduler; every rule is checked after every pass.
class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {
    limits_.page_tokens = 1 + pick(8);
    limits_.page_count = 1 + pick(40);
    limits_.sequence_count = 1 + pick(6);
    limits_.batch_tokens = limits_.sequence_count + pick(20);
    limits_.mixed_prompt_tokens = 1 + pick(10);
    limits_.logit_rows = limits_.sequence_count + pick(6);
    scheduler_.emplace(limits_);
  }

  void run() {
    size_t to_add = 1 + pick(30);
    size_t idle_passes = 0;
    while (to_add > 0 || !live_.empty()) {
      for (size_t arrivals = pick(3); arrivals > 0 && to_add > 0; --arrivals, --to_add) add();
      if (!live_.empty() && pick(12) == 0) cancel();
      const bool moved = pass();
      idle_passes = moved ? 0 : idle_passes + 1;
      ASSERT_LE(idle_passes, 20U) << "nothing moves though " << live_.size() << " wait";
    }
    EXPECT_TRUE(scheduler_->idle());
    EXPECT_EQ(scheduler_->pool().free_count(), limits_.page_count);
    EXPECT_EQ(scheduler_->pool().unreserved_count(), limits_.page_count);
    EXPECT_EQ(ended_, added_);
  }

 private:
  struct Life {
    size_t known = 0;
    size_t prompt = 0;
    size_t most = 0;
    size_t computed = 0;
    bool all_logits = false;
  };

  size_t pick(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random_); }

  void add() {
    const size_t capacity = limits_.page_count * limits_.page_tokens;
    Life life;
    life.most = 1 + pick(capacity);
    life.prompt = life.known = 1 + pick(life.most);
    life.all_logits = pick(4) == 0;
    live_.emplace(scheduler_->add(life.prompt, life.most, life.all_logits), life);
    ++added_;
  }

  void cancel() {
    auto chosen = live_.begin();
    std::advance(chosen, pick(live_.size()));
    end(chosen->first);
  }

  void end(SequenceId id) {
    scheduler_->finish(id);
    live_.erase(id);
    ++ended_;
  }

  bool pass() {
    const Schedule schedule = scheduler_->next_batch();
    if (schedule.chunks.empty()) return false;
    size_t tokens = 0;
    size_t rows = 0;
    std::set<SequenceId> seen;
    for (const Chunk& chunk : schedule.chunks) {
      Life& life = live_.at(chunk.sequence);
      EXPECT_TRUE(seen.insert(chunk.sequence).second);
      EXPECT_EQ(chunk.begin, life.computed);
      EXPECT_GT(chunk.count, 0U);
      EXPECT_LE(chunk.begin + chunk.count, life.known);
      EXPECT_EQ(chunk.sample, chunk.begin + chunk.count == life.known);
      EXPECT_GE(scheduler_->pages(chunk.sequence).size() * limits_.page_tokens,
                chunk.begin + chunk.count);
      life.computed += chunk.count;
      tokens += chunk.count;
      rows += life.all_logits && chunk.begin < life.prompt ? chunk.count : chunk.sample ? 1 : 0;
    }
    EXPECT_LE(tokens, limits_.batch_tokens);
    EXPECT_LE(rows, limits_.logit_rows);
    EXPECT_LE(scheduler_->running_count(), limits_.sequence_count);
    check_streams_move(seen);
    check_pages(schedule);
    scheduler_->computed();
    for (const Chunk& chunk : schedule.chunks) {
      if (chunk.sample) sampled(chunk.sequence);
    }
    return true;
  }

  void check_streams_move(const std::set<SequenceId>& seen) const {
    for (const auto& [id, life] : live_) {
      EXPECT_TRUE(life.known == life.prompt || seen.contains(id)) << "stream " << id << " stands";
    }
  }

  void check_pages(const Schedule& schedule) {
    std::map<uint32_t, SequenceId> owners;
    for (const auto& [id, life] : live_) {
      for (const uint32_t page : scheduler_->pages(id)) {
        EXPECT_LT(page, limits_.page_count);
        EXPECT_TRUE(owners.emplace(page, id).second) << "page " << page << " has two owners";
      }
    }
    EXPECT_EQ(owners.size() + scheduler_->pool().free_count(), limits_.page_count);
    for (const uint32_t page : schedule.cleared_pages) EXPECT_TRUE(owners.contains(page));
  }

  void sampled(SequenceId id) {
    Life& life = live_.at(id);
    if (life.known == life.most || pick(10) == 0) {
      end(id);
      return;
    }
    scheduler_->append_token(id);
    ++life.known;
  }

  std::mt19937_64 random_;
  SchedulerLimits limits_;
  std::optional<Scheduler> scheduler_;
  std::map<SequenceId, Life> live_;
  size_t added_ = 0;
  size_t ended_ = 0;
};

TEST(Scheduler, no_rule_breaks_in_ten_thousand_random_lives) {
  for (uint64_t seed = 1; seed <= 10'000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation(seed).run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace lockstep
