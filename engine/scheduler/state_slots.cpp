#include "engine/scheduler/state_slots.h"

#include <algorithm>
#include <map>

#include "engine/base/check.h"

namespace lockstep {

void StateSlots::release(uint32_t slot) {
  if (pool_.release(slot) == 0 && block(slot) == 0) pool_.free(slot);
}

void StateSlots::keep(uint32_t slot, BlockId block, std::string_view owner, size_t pages_saved) {
  CHECK(pool_.holders(slot) > 0 && block != 0 && uses_[slot].block == 0,
        "slot {} cannot become a checkpoint", slot);
  uses_[slot].owner = owner;
  uses_[slot].block = block;
  ++checkpoint_count_;
  use(slot, pages_saved);
}

void StateSlots::use(uint32_t slot, size_t pages_saved) {
  uses_[slot].floor = floor_;
  uses_[slot].pages_saved = pages_saved;
  uses_[slot].saved = false;
}

void StateSlots::drop(uint32_t slot) {
  CHECK(uses_[slot].block != 0, "slot {} is no checkpoint", slot);
  uses_[slot].block = 0;
  --checkpoint_count_;
  if (pool_.holders(slot) == 0) pool_.free(slot);
}

std::optional<uint32_t> StateSlots::least() const {
  std::map<std::string_view, size_t> counts;  // of idle ones, by owner
  size_t idle_count = 0;
  for (uint32_t slot = 0; slot < uses_.size(); ++slot) {
    if (!is_idle(slot)) continue;
    ++counts[uses_[slot].owner];
    ++idle_count;
  }
  std::optional<uint32_t> least;
  for (uint32_t slot = 0; slot < uses_.size(); ++slot) {
    if (!is_idle(slot) || counts[uses_[slot].owner] * counts.size() < idle_count) continue;
    if (!least || uses_[slot].worth() < uses_[*least].worth()) least = slot;
  }
  return least;
}

bool StateSlots::raise(uint32_t slot, size_t pages_saved) {
  if (pages_saved <= uses_[slot].pages_saved) return false;
  uses_[slot].pages_saved = pages_saved;
  return true;
}

void StateSlots::evict(uint32_t slot) {
  floor_ = std::max(floor_, uses_[slot].worth());
  ++eviction_count_;
  drop(slot);
}

std::optional<uint32_t> StateSlots::least_unsaved() const {
  std::optional<uint32_t> least;
  for (uint32_t slot = 0; slot < uses_.size(); ++slot) {
    if (!is_idle(slot) || is_saved(slot)) continue;
    if (!least || uses_[slot].worth() < uses_[*least].worth()) least = slot;
  }
  return least;
}

size_t StateSlots::clean_count() const {
  size_t count = pool_.free_count();
  for (uint32_t slot = 0; slot < uses_.size(); ++slot) {
    count += is_idle(slot) && is_saved(slot) ? 1 : 0;
  }
  return count;
}

void StateSlots::reset() {
  for (Use& use : uses_) use.block = 0;
  checkpoint_count_ = 0;
  floor_ = 0;
  pool_.reset();
}

}  // namespace lockstep
