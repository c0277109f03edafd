// The slots of sequences' states as numbers. A slot is free, or a sequence's own, or a checkpoint:
// it holds the state behind a block of the prefix cache. A checkpoint without holders makes way for
// others, the least worth first, among the owners that keep at least as many as the mean.
//
// A checkpoint saves what lies between it and the one before it, in pages, each time it is found.
// Its worth is that, plus the worth of the checkpoint that had made way last when it was last used
// (GreedyDual: N. Young, The k-server dual and loose competitiveness for paging, 1994).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/scheduler/page_pool.h"

namespace lockstep {

// A block of the prefix cache, of all that ever were; 0: none.
using BlockId = uint64_t;

// The state in one slot is copied into another.
struct SlotCopy {
  uint32_t from = 0;
  uint32_t to = 0;

  friend bool operator==(const SlotCopy&, const SlotCopy&) = default;
};

class StateSlots {
 public:
  explicit StateSlots(size_t slot_count) : pool_(slot_count), uses_(slot_count) {}

  // A free slot with one holder; none if there is none.
  std::optional<uint32_t> take() { return pool_.take(); }
  void hold(uint32_t slot) { pool_.hold(slot); }
  // A checkpoint is kept, another slot without holders is free.
  void release(uint32_t slot);

  // A held slot that is none becomes the block's checkpoint.
  void keep(uint32_t slot, BlockId block, std::string_view owner, size_t pages_saved);
  // It has been found.
  void use(uint32_t slot, size_t pages_saved);
  // It is no checkpoint any more, and free without holders. Takes no memory.
  void drop(uint32_t slot);

  // The checkpoint to make way; none if all are held. raise() it, as long as that does anything.
  std::optional<uint32_t> least() const;
  // More pages lie before it than when it was used: others have made way since. False: no more.
  bool raise(uint32_t slot, size_t pages_saved);
  // Drops it for the sake of another.
  void evict(uint32_t slot);

  // A copy of a checkpoint lies elsewhere; until the checkpoint is used, for that may last long.
  void note_saved(uint32_t slot) { uses_[slot].saved = true; }
  bool is_saved(uint32_t slot) const { return uses_[slot].saved; }
  // The unsaved checkpoint without holders that is worth least; none if all are saved or held.
  std::optional<uint32_t> least_unsaved() const;
  // Slots that can be handed out, and of which nothing is lost by that.
  size_t clean_count() const;

  // 0: it is no checkpoint.
  BlockId block(uint32_t slot) const { return uses_[slot].block; }
  bool is_idle(uint32_t slot) const { return block(slot) != 0 && pool_.holders(slot) == 0; }
  size_t checkpoint_count() const { return checkpoint_count_; }
  uint64_t eviction_count() const { return eviction_count_; }
  const PagePool& pool() const { return pool_; }

  // Every slot is free. Takes no memory.
  void reset();

 private:
  struct Use {
    BlockId block = 0;  // of a checkpoint
    std::string owner;
    uint64_t floor = 0;  // worth of the last one that had made way
    uint64_t pages_saved = 0;
    bool saved = false;  // a copy lies elsewhere

    uint64_t worth() const { return floor + pages_saved; }
  };

  PagePool pool_;
  std::vector<Use> uses_;  // by slot
  uint64_t floor_ = 0;
  size_t checkpoint_count_ = 0;
  uint64_t eviction_count_ = 0;
};

}  // namespace lockstep
