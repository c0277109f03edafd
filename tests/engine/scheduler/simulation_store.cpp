// The pages and states that a simulated life keeps outside of the cache.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/scheduler/simulation.h"

namespace lockstep {

PageStore::Answer Simulation::Store::ask(const StoredKey& key) {
  const auto found = pages_.find(key);
  if (found == pages_.end()) return Answer::kAbsent;
  if (life_.chance(50)) {
    coming_ = true;  // when it is asked again in this pass
    return Answer::kAbsent;
  }
  if (found->second.asks_left == 0) return Answer::kHere;
  --found->second.asks_left;
  coming_ = true;
  return Answer::kComing;
}

bool Simulation::Store::load(const StoredKey& key, uint32_t place) {
  const auto found = pages_.find(key);
  if (found == pages_.end() || life_.chance(30)) return false;
  // The cache had it when the store was asked, and has lost it since.
  if (found->second.asks_left > 0) return false;
  if (key.kind == StoredKind::kState) {
    load_state(found->second, place);
    return true;
  }
  EXPECT_EQ(life_.scheduler_->cache().pool().holders(place), 1U);
  EXPECT_FALSE(life_.scheduler_->cache().knows(place));
  std::ranges::copy(
      found->second.cells,
      life_.cells_.begin() + static_cast<std::ptrdiff_t>(place * life_.limits_.page_tokens));
  life_.contents_[place] = found->second.content;
  return true;
}

void Simulation::Store::load_state(const Page& page, uint32_t slot) {
  const StateSlots& slots = life_.scheduler_->slots();
  EXPECT_TRUE(slots.is_idle(slot)) << "a state is loaded into slot " << slot;
  for (const auto& [id, life] : life_.live_) EXPECT_NE(life_.scheduler_->state(id), slot);
  life_.states_[slot] = page.state;
  ++loaded_states_;
}

bool Simulation::Store::save(const StoredKey& key, uint32_t place, bool /*makes_way*/) {
  if (life_.chance(20)) return false;
  if (!pages_.empty() && life_.chance(40)) pages_.erase(pages_.begin());
  Page copy = key.kind == StoredKind::kState ? copy_state(place) : copy_page(place);
  copy.asks_left = life_.pick(4);
  pages_.emplace(key, std::move(copy));
  return true;
}

Simulation::Store::Page Simulation::Store::copy_page(uint32_t page) const {
  EXPECT_TRUE(life_.scheduler_->cache().knows(page));
  const auto begin =
      life_.cells_.begin() + static_cast<std::ptrdiff_t>(page * life_.limits_.page_tokens);
  Page copy;
  copy.cells.assign(begin, begin + static_cast<std::ptrdiff_t>(life_.limits_.page_tokens));
  copy.content = life_.contents_[page];
  return copy;
}

Simulation::Store::Page Simulation::Store::copy_state(uint32_t slot) const {
  EXPECT_NE(life_.scheduler_->slots().block(slot), 0U) << "slot " << slot << " is no checkpoint";
  Page copy;
  copy.state = life_.states_[slot];
  return copy;
}

bool Simulation::Store::holds_state(uint64_t value) const {
  return std::ranges::any_of(pages_, [&](const auto& page) {
    return page.first.kind == StoredKind::kState && page.second.state.value == value;
  });
}

bool Simulation::Store::holds_any(const std::set<ContentId>& contents) const {
  return std::ranges::any_of(pages_, [&](const auto& page) {
    return page.first.kind == StoredKind::kPage && contents.contains(page.second.content);
  });
}

void Simulation::Store::drop(const std::set<ContentId>& contents) {
  const auto is_spoiled = [&](ContentId content) { return contents.contains(content); };
  std::erase_if(pages_, [&](const auto& page) {
    return page.first.kind == StoredKind::kPage
               ? is_spoiled(page.second.content)
               : std::ranges::any_of(page.second.state.rests_on, is_spoiled);
  });
}

}  // namespace lockstep
