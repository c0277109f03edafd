// Passes of a simulated life that begin before the last one's tokens are known.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/scheduler/simulation.h"

namespace lockstep {

// In the middle of a pass: what it is behind is computed, and its tokens are not known.
void Simulation::ask_for_promise(const Schedule& schedule) {
  promised_.reset();
  const Schedule* const promised = scheduler_->promise();
  if (promised == nullptr) return;
  EXPECT_EQ(limits_.state_slots, 0U);
  EXPECT_EQ(scheduler_->waiting_count(), 0U);
  EXPECT_EQ(promised->chunks.size(), scheduler_->running_count());
  EXPECT_TRUE(promised->state_copies.empty());
  promised_ = {.schedule = *promised, .tables = {}};
  auto passed = schedule.chunks.begin();
  for (const Chunk& chunk : promised->chunks) {
    while (passed->ended) ++passed;
    EXPECT_EQ(chunk.sequence, (passed++)->sequence) << "another order";
    const Life& life = live_.at(chunk.sequence);
    const size_t next = life.tokens.size();
    EXPECT_GE(next, life.asked.prompt.size() + 1) << "a prompt is promised";
    EXPECT_LT(next, life.asked.most_tokens) << "a token too many";
    EXPECT_TRUE(scheduler_->drafts(chunk.sequence).empty());
    EXPECT_EQ(chunk.begin, next);
    EXPECT_EQ(chunk.count, 1U);
    EXPECT_EQ(chunk.logits_begin, next);
    EXPECT_TRUE(chunk.sample && chunk.generated && !chunk.first && !chunk.ended);
    EXPECT_EQ(chunk.drafted, 0U);
    const auto tables = scheduler_->tables(chunk.sequence);
    promised_->tables[chunk.sequence].assign(tables.begin(), tables.end());
  }
  clear(promised->cleared_pages);
  check_pages();
}

// As soon as it can: when the last pass's tokens are known, with the pages from before.
void Simulation::compute_promised() {
  size_t going_on = 0;
  for (const Chunk& chunk : promised_->schedule.chunks) going_on += write_promised(chunk) ? 1 : 0;
  EXPECT_EQ(scheduler_->has_promised(), going_on > 0);
}

// True: the sequence goes on. Otherwise what is written of it must be in nobody's way.
bool Simulation::write_promised(const Chunk& chunk) {
  const auto found = live_.find(chunk.sequence);
  const bool goes_on = found != live_.end() && !scheduler_->tables(chunk.sequence).empty();
  const std::vector<PageTable>& tables = promised_->tables.at(chunk.sequence);
  const auto cell_of = [&](size_t group, size_t position) -> uint64_t& {
    const size_t index = position / limits_.page_tokens;
    EXPECT_GE(index, tables[group].given_back);
    const uint32_t page = tables[group].pages[index];
    if (position == chunk.begin) {
      EXPECT_FALSE(scheduler_->cache().knows(page));
    }
    return cells_[page * limits_.page_tokens + position % limits_.page_tokens];
  };
  uint64_t value = goes_on ? root_value(found->second) : 0;
  for (size_t position = 0; goes_on && position < chunk.begin; ++position) {
    value = content(found->second, value, position);
    for (size_t group = 0; group < limits_.windows.size(); ++group) {
      if (position < limits_.windows[group].first_seen(chunk.begin)) continue;
      EXPECT_EQ(cell_of(group, position), mixed(value + group))
          << "position " << position << " of sequence " << chunk.sequence;
    }
  }
  if (goes_on) value = content(found->second, value, chunk.begin);
  for (size_t group = 0; group < limits_.windows.size(); ++group) {
    uint64_t& there = cell_of(group, chunk.begin);
    if (goes_on) {
      EXPECT_TRUE(there == kCleared || there == kRejected);
      EXPECT_EQ(&there, &cell(chunk.sequence, group, chunk.begin)) << "another page since";
    }
    there = goes_on ? mixed(value + group) : kRejected;
  }
  return goes_on;
}

void Simulation::withdraw() {
  for (const Chunk& chunk : promised_->schedule.chunks) {
    if (!live_.contains(chunk.sequence) || scheduler_->tables(chunk.sequence).empty()) continue;
    for (size_t group = 0; group < limits_.windows.size(); ++group) {
      cell(chunk.sequence, group, chunk.begin) = kRejected;
    }
  }
  scheduler_->withdraw();
  promised_.reset();
  ++promises_withdrawn_;
}

// The pass is what was promised, and what it has computed is still there.
void Simulation::check_kept(const Schedule& schedule) {
  const Schedule& promised = promised_->schedule;
  ASSERT_EQ(schedule.chunks.size(), promised.chunks.size());
  size_t ended = 0;
  for (size_t index = 0; index < schedule.chunks.size(); ++index) {
    const Chunk& chunk = schedule.chunks[index];
    EXPECT_EQ(chunk.sequence, promised.chunks[index].sequence);
    EXPECT_EQ(chunk.begin, promised.chunks[index].begin);
    const bool is_there = live_.contains(chunk.sequence);
    const bool goes_on = is_there && !scheduler_->tables(chunk.sequence).empty();
    EXPECT_EQ(chunk.ended, !goes_on);
    ended += chunk.ended ? 1 : 0;
    if (chunk.ended) continue;
    check_chunk(chunk);
    if (::testing::Test::HasFailure()) return;
    const Life& life = live_.at(chunk.sequence);
    uint64_t value = root_value(life);
    for (size_t position = 0; position <= chunk.begin; ++position) {
      value = content(life, value, position);
    }
    for (size_t group = 0; group < limits_.windows.size(); ++group) {
      EXPECT_EQ(cell(chunk.sequence, group, chunk.begin), mixed(value + group));
    }
    note_contents(chunk, chunk.begin + 1);
  }
  EXPECT_TRUE(schedule.state_copies.empty());
  ++(ended > 0 ? promises_broken_ : promises_kept_);
  promised_.reset();
}

}  // namespace lockstep
