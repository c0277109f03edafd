// The pages of the KV cache, shared by prefix: sequences that need the keys and values of the same
// tokens, after the same tokens and for the same owner and salt, hold the same pages. A page that
// no sequence holds stays until its memory is needed; then those go first that have not been used
// for the longest time, among the owners that keep at least as many as the mean.
//
// A block is what is known of a page of tokens: the tokens, the block before, and for each group of
// the cache's layers (graph/kv_layout.h) a page, if it is still there. A block may be without the
// page of a group that has a window: what comes after it can be used nevertheless. Only what can be
// found is known: the block before a known one is known as well, and without a page of a group that
// sees all tokens a block is forgotten, and what follows it.
//
// A block may have a checkpoint if sequences have states (docs/state.md): a slot that holds the
// state after the block's tokens. It goes when the block is forgotten, and may go before that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/attention_window.h"
#include "engine/base/cache_events.h"
#include "engine/scheduler/page_pool.h"
#include "engine/scheduler/prefix_key.h"
#include "engine/scheduler/state_slots.h"

namespace lockstep {

// Whose prefixes: only requests with the same two share pages.
struct CacheScope {
  std::string owner;
  std::string salt;

  bool operator==(const CacheScope&) const = default;
};

class PrefixCache {
 public:
  // `windows`: by group. `state_slots`: 0 where sequences have no states.
  PrefixCache(size_t page_count, std::vector<AttentionWindow> windows, size_t state_slots = 0)
      : windows_(std::move(windows)), pool_(page_count), uses_(page_count), slots_(state_slots) {}

  // From now on blocks that become known, and those that are forgotten, are told there; it must
  // outlive this. Null: nowhere.
  void tell(CacheEvents* events) { events_ = events; }

  // The place of a page of tokens: the block of those before it, 0 for the first.
  struct Prefix {
    PrefixKey key;  // of all tokens up to the page's end
    BlockId before = 0;
    std::span<const int32_t> tokens;  // of the page
  };

  // A page to be written to, with one holder; evicts one if none is free. None if all are held.
  std::optional<uint32_t> take();
  void hold(uint32_t page);
  // A page of a known block is kept, another one is free.
  void release(uint32_t page);

  // The block that is known by this prefix, or 0. The key alone is never believed: tokens, the
  // block before and, for a first one, the scope are compared.
  BlockId find(const CacheScope& scope, const Prefix& prefix) const;
  // None where the block is not known any more, or its page of this group has been evicted.
  std::optional<uint32_t> page(BlockId block, size_t group) const;
  bool is_known(BlockId block) const { return blocks_.contains(block); }
  // A new block that is known by this prefix, without pages as yet. 0, and nothing happens, if
  // the block before it is not known, or the key stands for another one.
  BlockId insert(const CacheScope& scope, const Prefix& prefix);
  // A held page, full, that is no block's becomes the one of a known block that has none. Takes no
  // memory.
  void put(BlockId block, size_t group, uint32_t page);
  // Forgets a block and the blocks that follow it: find() gives none of them any more, and their
  // pages without a holder are free. Nothing happens if the block is not known.
  void forget(BlockId block);
  void forget_all();
  // Every page is free and nothing is known, whatever state a throw has left. Takes no memory.
  void reset();

  // A slot with one holder; a checkpoint makes way if none is free. None if all are held.
  std::optional<uint32_t> take_slot();
  void hold_slot(uint32_t slot) { slots_.hold(slot); }
  // A checkpoint is kept, another slot is free.
  void release_slot(uint32_t slot) { slots_.release(slot); }
  // The checkpoint of a block; none where it has none, or is not known any more.
  std::optional<uint32_t> checkpoint(BlockId block) const;
  // A slot, without holders, for the state behind a known block that has none. None if all slots
  // are held.
  std::optional<uint32_t> add_checkpoint(BlockId block);
  // A slot with one holder becomes the checkpoint of a known block that has none, and is held no
  // more.
  void put_checkpoint(BlockId block, uint32_t slot);
  // As add_checkpoint(), in the slot of another block's checkpoint. None, and nothing happens,
  // where that is gone, or held, or others go on from that block.
  std::optional<uint32_t> move_checkpoint(BlockId from, BlockId to);
  // The checkpoint of a block has been found.
  void use_checkpoint(BlockId block);
  // A block has a checkpoint no longer.
  void drop_checkpoint(BlockId block);

  // From now on pages are counted among the unsaved when no sequence holds them any more.
  void list_unsaved() { lists_unsaved_ = true; }
  // The block of the page that has been unsaved for the longest time; 0: there is none.
  BlockId first_unsaved();
  void note_saved(uint32_t page);
  // Pages that can be handed out, and of which nothing is lost by that.
  size_t clean_count() const { return available_count() - unsaved_idle_count_; }
  bool is_saved(uint32_t page) const { return uses_[page].saved; }
  // Notes that the block's checkpoint, which must exist, has a copy.
  void note_checkpoint_saved(BlockId block) { slots_.note_saved(blocks_.at(block).state.value()); }
  // A known block's.
  const PrefixKey& key(BlockId block) const { return blocks_.at(block).key; }
  BlockId before(BlockId block) const { return blocks_.at(block).before; }
  const CacheScope& scope(BlockId block) const { return blocks_.at(block).scope; }
  // The keys of a block and of all that follow it; none if it is not known.
  std::vector<PrefixKey> keys_from(BlockId block) const;
  // A known block without pages that nothing follows is forgotten.
  void tidy(BlockId block) {
    if (is_known(block)) remove_empty(block);
  }

  bool knows(uint32_t page) const { return uses_[page].block != 0; }
  // Nobody holds it, and it could be evicted.
  bool is_idle(uint32_t page) const { return knows(page) && pool_.holders(page) == 0; }
  size_t idle_count() const { return idle_count_; }
  size_t available_count() const { return pool_.free_count() + idle_count_; }
  uint64_t eviction_count() const { return eviction_count_; }
  size_t block_count() const { return blocks_.size(); }
  size_t group_count() const { return windows_.size(); }
  const AttentionWindow& window(size_t group) const { return windows_[group]; }
  std::span<const AttentionWindow> windows() const { return windows_; }  // by group
  const PagePool& pool() const { return pool_; }
  const StateSlots& slots() const { return slots_; }

 private:
  struct Block {
    PrefixKey key;
    BlockId before = 0;          // known; 0: it is a first one
    std::vector<BlockId> after;  // the known blocks that follow
    CacheScope scope;
    std::vector<int32_t> tokens;
    std::vector<std::optional<uint32_t>> pages;  // by group
    std::optional<uint32_t> state = {};          // the slot of its checkpoint
  };
  // The use of a page; of no block: it is free, or a sequence's alone.
  struct PageUse {
    BlockId block = 0;
    size_t group = 0;
    uint64_t idle_since = 0;  // a count of releases
    bool saved = false;       // a copy lies elsewhere
    bool listed = false;      // in unsaved_
    std::list<uint32_t>::iterator idle_place = {};
  };
  struct KeyHash {
    size_t operator()(const PrefixKey& key) const { return key.low; }
  };

  void leave_idle(uint32_t page);
  uint32_t oldest() const;
  void evict(uint32_t page);
  void drop_page(uint32_t page);
  void tell_stored(const Block& block);
  void remove(BlockId id);
  void remove_empty(BlockId id);
  size_t pages_saved(BlockId id) const;

  std::vector<AttentionWindow> windows_;  // by group
  CacheEvents* events_ = nullptr;
  PagePool pool_;
  std::vector<PageUse> uses_;  // by page
  StateSlots slots_;
  std::unordered_map<BlockId, Block> blocks_;
  std::unordered_map<PrefixKey, BlockId, KeyHash> known_;
  std::map<std::string, std::list<uint32_t>> idle_;  // by owner, oldest first; none is empty
  bool lists_unsaved_ = false;
  std::deque<uint32_t> unsaved_;  // that have become idle; some may be saved or gone by now
  BlockId next_block_ = 1;
  size_t idle_count_ = 0;
  size_t unsaved_idle_count_ = 0;
  uint64_t releases_ = 0;
  uint64_t eviction_count_ = 0;
};

}  // namespace lockstep
