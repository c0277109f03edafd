// The states of simulated sequences: who holds which slot, and what the slots hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>

#include "tests/engine/scheduler/simulation.h"

namespace lockstep {

// No slot is two sequences' own, or a sequence's and a checkpoint; and none is lost.
void Simulation::check_slots() {
  const StateSlots& slots = scheduler_->slots();
  std::set<uint32_t> own;
  std::set<uint32_t> new_ones;  // to which states are copied in the pass that is open
  size_t held_in_pass = 0;
  for (const auto& [id, life] : live_) {
    const auto slot = scheduler_->state(id);
    if (!slot) continue;
    ASSERT_LT(*slot, limits_.state_slots);
    EXPECT_TRUE(own.insert(*slot).second) << "slot " << *slot << " is of two sequences";
    EXPECT_EQ(slots.block(*slot), 0U) << "slot " << *slot << " is a sequence's and a checkpoint";
    EXPECT_EQ(slots.pool().holders(*slot), 1U);
    // In the middle of a pass, one with the state from before its draft.
    if (!scheduler_->drafts(id).empty()) ++held_in_pass;
    for (const SlotBehind& kept : scheduler_->new_checkpoints(id)) {
      EXPECT_TRUE(new_ones.insert(kept.slot).second) << "slot " << kept.slot << " is kept twice";
      EXPECT_EQ(slots.block(kept.slot), 0U) << "slot " << kept.slot << " is a checkpoint already";
      EXPECT_EQ(slots.pool().holders(kept.slot), 1U);
    }
  }
  size_t checkpoints = 0;
  size_t others = 0;  // checkpoints that have been forgotten, and that sequences are to begin from
  for (uint32_t slot = 0; slot < limits_.state_slots; ++slot) {
    const BlockId block = slots.block(slot);
    checkpoints += block != 0 ? 1 : 0;
    others += block == 0 && !own.contains(slot) && slots.pool().holders(slot) > 0 ? 1 : 0;
    if (block != 0) {
      EXPECT_EQ(scheduler_->cache().checkpoint(block), slot);
    }
  }
  EXPECT_EQ(slots.checkpoint_count(), checkpoints);
  for (const uint32_t slot : new_ones) EXPECT_FALSE(own.contains(slot)) << "slot " << slot;
  held_in_pass += new_ones.size();
  EXPECT_GE(others, held_in_pass);
  EXPECT_TRUE(others == held_in_pass || discarded_ > 0 || evictions() > 0);
  EXPECT_EQ(slots.pool().free_count() + own.size() + checkpoints + others, limits_.state_slots);
}

void Simulation::copy_states(std::span<const SlotCopy> copies) {
  for (const SlotCopy& copy : copies) {
    ASSERT_LT(std::max(copy.from, copy.to), limits_.state_slots);
    EXPECT_NE(copy.from, copy.to);
    states_[copy.to] = states_[copy.from];
  }
}

// The chunk of a sequence that begins takes any state for none.
void Simulation::compute_state(const Chunk& chunk, uint64_t before, uint64_t after,
                               std::span<const uint64_t> kept) {
  const auto slot = scheduler_->state(chunk.sequence);
  ASSERT_EQ(slot.has_value(), limits_.state_slots > 0);
  if (!slot) return;
  ASSERT_LT(*slot, limits_.state_slots);
  State& state = states_[*slot];
  if (chunk.begin > 0) {
    ASSERT_EQ(state.value, before)
        << "the state of sequence " << chunk.sequence << " at position " << chunk.begin;
  } else {
    state.rests_on.clear();
  }
  const auto checkpoints = scheduler_->new_checkpoints(chunk.sequence);
  for (size_t index = 0; index < kept.size(); ++index) {
    const auto [to, tokens] = checkpoints[index];
    states_[to] = {.value = kept[index], .rests_on = state.rests_on};
    for (const PageTable& table : scheduler_->tables(chunk.sequence)) {
      const size_t page_end = std::min(table.pages.size(), tokens / limits_.page_tokens);
      for (size_t page = table.given_back; page < page_end; ++page) {
        states_[to].rests_on.insert(contents_[table.pages[page]]);
      }
    }
  }
  new_checkpoints_ += kept.size();
  state.value = after;
  for (const uint32_t page : held_pages(chunk.sequence)) state.rests_on.insert(contents_[page]);
}

}  // namespace lockstep
