#include "engine/scheduler/prefix_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/check.h"

namespace lockstep {

std::optional<uint32_t> PrefixCache::take() {
  if (pool_.free_count() == 0 && idle_count_ > 0) {
    evict(oldest());
    ++eviction_count_;
  }
  return pool_.take();
}

// A block's page is released before that of the block before it, where a sequence ends: so it is
// never left behind by it.
uint32_t PrefixCache::oldest() const {
  uint64_t since = std::numeric_limits<uint64_t>::max();
  uint32_t page = 0;
  for (const auto& [owner, pages] : idle_) {
    const uint64_t front = uses_[pages.front()].idle_since;
    if (pages.size() * idle_.size() < idle_count_ || front >= since) continue;
    since = front;
    page = pages.front();
  }
  return page;
}

// Without a page that all later tokens see, the block is of no use; without another one, the blocks
// that follow may be.
void PrefixCache::evict(uint32_t page) {
  const PageUse& use = uses_[page];
  const BlockId block = use.block;
  if (windows_[use.group].sees_all()) return forget(block);
  drop_page(page);
  remove_empty(block);
}

void PrefixCache::hold(uint32_t page) {
  if (is_idle(page)) {
    leave_idle(page);
    uses_[page].saved = false;  // the copy may go meanwhile: the next time that it is idle tells
  }
  pool_.hold(page);
}

void PrefixCache::release(uint32_t page) {
  if (pool_.release(page) > 0) return;
  if (!knows(page)) {
    pool_.free(page);
    return;
  }
  PageUse& use = uses_[page];
  std::list<uint32_t>& own = idle_[blocks_.at(use.block).scope.owner];
  use.idle_since = ++releases_;
  use.idle_place = own.insert(own.end(), page);
  ++idle_count_;
  if (use.saved) return;
  ++unsaved_idle_count_;
  if (!lists_unsaved_ || use.listed) return;
  unsaved_.push_back(page);
  use.listed = true;
}

void PrefixCache::leave_idle(uint32_t page) {
  const PageUse& use = uses_[page];
  const auto own = idle_.find(blocks_.at(use.block).scope.owner);
  own->second.erase(use.idle_place);
  if (own->second.empty()) idle_.erase(own);
  --idle_count_;
  if (!use.saved) --unsaved_idle_count_;
}

BlockId PrefixCache::find(const CacheScope& scope, const Prefix& prefix) const {
  const auto found = known_.find(prefix.key);
  if (found == known_.end()) return 0;
  const Block& block = blocks_.at(found->second);
  const bool same = prefix.before == block.before && block.scope == scope &&
                    std::ranges::equal(block.tokens, prefix.tokens);
  return same ? found->second : 0;
}

std::optional<uint32_t> PrefixCache::page(BlockId block, size_t group) const {
  const auto found = blocks_.find(block);
  return found == blocks_.end() ? std::nullopt : found->second.pages[group];
}

BlockId PrefixCache::insert(const CacheScope& scope, const Prefix& prefix) {
  if (prefix.before != 0 && !blocks_.contains(prefix.before)) return 0;
  const BlockId id = next_block_++;
  if (!known_.emplace(prefix.key, id).second) return 0;
  Block& block = blocks_[id];
  block.key = prefix.key;
  block.before = prefix.before;
  block.scope = scope;
  block.tokens.assign(prefix.tokens.begin(), prefix.tokens.end());
  block.pages.resize(windows_.size());
  if (prefix.before != 0) blocks_.at(prefix.before).after.push_back(id);
  if (events_ != nullptr) tell_stored(block);
  return id;
}

// The hash is 64 bits of the key, which is one of the engine's secret: it tells nothing of what it
// was made of.
void PrefixCache::tell_stored(const Block& block) {
  std::optional<uint64_t> before;
  if (block.before != 0) before = blocks_.at(block.before).key.low;
  events_->store(block.key.low, before, block.tokens, before ? "" : block.scope.salt);
}

void PrefixCache::put(BlockId block, size_t group, uint32_t page) {
  CHECK(pool_.holders(page) > 0, "page {} is held by nobody", page);
  std::optional<uint32_t>& place = blocks_.at(block).pages[group];
  CHECK(!place && !knows(page), "page {} is put twice", page);
  place = page;
  uses_[page].block = block;
  uses_[page].group = group;
}

// Its block has it no longer.
void PrefixCache::drop_page(uint32_t page) {
  const bool idle = is_idle(page);
  if (idle) leave_idle(page);
  PageUse& use = uses_[page];
  blocks_.at(use.block).pages[use.group].reset();
  use.block = 0;
  use.saved = false;
  if (idle) pool_.free(page);
}

// One that nothing follows any more.
void PrefixCache::remove(BlockId id) {
  const auto found = blocks_.find(id);
  Block& block = found->second;
  for (const std::optional<uint32_t> page : block.pages) {
    if (page) drop_page(*page);
  }
  if (block.state) slots_.drop(*block.state);
  if (events_ != nullptr) events_->remove(block.key.low);
  if (block.before != 0) {
    std::vector<BlockId>& after = blocks_.at(block.before).after;
    after.back() == id ? after.pop_back() : void(std::erase(after, id));
  }
  known_.erase(block.key);
  blocks_.erase(found);
}

// Removes a block that has no pages and that nothing follows, and then those before it that are so.
void PrefixCache::remove_empty(BlockId id) {
  while (id != 0) {
    const Block& block = blocks_.at(id);
    const bool has_page = std::ranges::any_of(
        block.pages, [](const std::optional<uint32_t>& page) { return page.has_value(); });
    if (has_page || !block.after.empty()) return;
    const BlockId before = block.before;
    remove(id);
    id = before;
  }
}

void PrefixCache::forget(BlockId id) {
  const auto found = blocks_.find(id);
  if (found == blocks_.end()) return;
  const BlockId before = found->second.before;
  // From the last of those that follow it on.
  BlockId next = id;
  while (true) {
    const Block& block = blocks_.at(next);
    if (!block.after.empty()) {
      next = block.after.back();
      continue;
    }
    const BlockId parent = block.before;
    remove(next);
    if (next == id) break;
    next = parent;
  }
  remove_empty(before);
}

void PrefixCache::note_saved(uint32_t page) {
  if (is_idle(page) && !uses_[page].saved) --unsaved_idle_count_;
  uses_[page].saved = true;
}

BlockId PrefixCache::first_unsaved() {
  while (!unsaved_.empty()) {
    PageUse& use = uses_[unsaved_.front()];
    if (use.block != 0 && !use.saved) return use.block;
    use.listed = false;
    unsaved_.pop_front();
  }
  return 0;
}

std::vector<PrefixKey> PrefixCache::keys_from(BlockId id) const {
  std::vector<PrefixKey> keys;
  std::vector<BlockId> left;
  if (is_known(id)) left.push_back(id);
  while (!left.empty()) {
    const Block& block = blocks_.at(left.back());
    left.pop_back();
    keys.push_back(block.key);
    left.insert(left.end(), block.after.begin(), block.after.end());
  }
  return keys;
}

void PrefixCache::forget_all() {
  CacheEvents* const events = std::exchange(events_, nullptr);  // told as one
  while (!blocks_.empty()) forget(blocks_.begin()->first);
  events_ = events;
  if (events_ != nullptr) events_->clear();
}

void PrefixCache::reset() {
  for (PageUse& use : uses_) use.block = 0, use.saved = false, use.listed = false;
  unsaved_.clear();
  blocks_.clear();
  known_.clear();
  idle_.clear();
  idle_count_ = 0;
  unsaved_idle_count_ = 0;
  pool_.reset();
  slots_.reset();
  if (events_ != nullptr) events_->clear();
}

std::optional<uint32_t> PrefixCache::take_slot() {
  while (slots_.pool().free_count() == 0) {
    const auto slot = slots_.least();
    if (!slot) return std::nullopt;
    const BlockId block = slots_.block(*slot);
    if (slots_.raise(*slot, pages_saved(block))) continue;
    slots_.evict(*slot);
    blocks_.at(block).state.reset();
  }
  return slots_.take();
}

std::optional<uint32_t> PrefixCache::checkpoint(BlockId block) const {
  const auto found = blocks_.find(block);
  return found == blocks_.end() ? std::nullopt : found->second.state;
}

std::optional<uint32_t> PrefixCache::add_checkpoint(BlockId block) {
  const auto slot = take_slot();
  if (slot) put_checkpoint(block, *slot);
  return slot;
}

std::optional<uint32_t> PrefixCache::move_checkpoint(BlockId from, BlockId to) {
  const auto found = blocks_.find(from);
  if (found == blocks_.end() || !found->second.state || found->second.after.size() > 1) return {};
  const uint32_t slot = *found->second.state;
  if (!slots_.is_idle(slot)) return {};
  slots_.hold(slot);
  drop_checkpoint(from);
  put_checkpoint(to, slot);
  return slot;
}

void PrefixCache::use_checkpoint(BlockId block) {
  slots_.use(blocks_.at(block).state.value(), pages_saved(block));
}

void PrefixCache::drop_checkpoint(BlockId block) {
  slots_.drop(std::exchange(blocks_.at(block).state, std::nullopt).value());
}

void PrefixCache::put_checkpoint(BlockId id, uint32_t slot) {
  Block& block = blocks_.at(id);
  CHECK(!block.state, "block {} gets a second checkpoint", id);
  slots_.keep(slot, id, block.scope.owner, pages_saved(id));
  block.state = slot;
  slots_.release(slot);
}

// The pages since the checkpoint before the block's.
size_t PrefixCache::pages_saved(BlockId id) const {
  size_t pages = 1;
  for (BlockId before = blocks_.at(id).before; before != 0; ++pages) {
    const Block& block = blocks_.at(before);
    if (block.state) break;
    before = block.before;
  }
  return pages;
}

}  // namespace lockstep
