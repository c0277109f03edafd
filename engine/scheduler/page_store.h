// The interface of what holds pages outside of the KV cache, and checkpoints of states outside of
// their slots (docs/tiers.md): copies, by the key of their prefix and, of pages, the group of
// layers. The scheduler's own view: it asks, loads and saves between passes, and never waits.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/scheduler/prefix_key.h"
#include "engine/scheduler/state_slots.h"

namespace lockstep {

enum class StoredKind : uint8_t {
  kPage,   // full, of one group of the cache's layers
  kState,  // of the layers that keep one, behind the prefix
};
inline constexpr size_t kStoredKindCount = 2;

struct StoredKey {
  PrefixKey prefix;
  size_t group = 0;  // of pages
  StoredKind kind = StoredKind::kPage;
  uint64_t owner = 0;  // of the prefix, which it follows from: owners share space by it

  auto operator<=>(const StoredKey&) const = default;
};

// Called by the thread that runs passes, between them.
class PageStore {
 public:
  enum class Answer : uint8_t {
    kAbsent,  // it is not there, or not any more
    kComing,  // it is being read, or will be
    kHere,    // load() copies it
  };

  virtual ~PageStore() = default;

  virtual bool contains(const StoredKey& key) = 0;
  // The same, and what is not at hand is read in the background as soon as there is space.
  virtual Answer ask(const StoredKey& key) = 0;
  // Fills a page of the cache, or a slot of states. False: it is not at hand, and the page or slot
  // holds what it held.
  virtual bool load(const StoredKey& key, uint32_t place) = 0;
  // Copies a page of the cache, which does not change while it is known, or a slot of states. True:
  // that is done, or will never be; false: there is no space yet. `makes_way`: the cache is about
  // to lose it.
  virtual bool save(const StoredKey& key, uint32_t place, bool makes_way) = 0;
  // Copies states between slots, in this order.
  virtual void copy_states(std::span<const SlotCopy> copies) = 0;
  // Saved pages are there when the process is not: all of the cache is worth saving.
  virtual bool outlives_process() const = 0;
  // The copy of this page is of no use: it is not given any more.
  virtual void erase(const StoredKey& key) = 0;
};

}  // namespace lockstep
