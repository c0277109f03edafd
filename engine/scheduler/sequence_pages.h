// A sequence's pages: found in the prefix cache, taken, made known to it, and given back; and the
// slot of its states, where layers keep some.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/scheduler/page_pool.h"
#include "engine/scheduler/prefix_cache.h"
#include "engine/scheduler/sequence.h"

namespace lockstep {

class SequencePages {
 public:
  struct Rules {
    size_t page_tokens = 64;
    size_t pass_tokens = 512;  // of a pass at most
    // Whether a token's keys and values are the same, prompted or generated; if not, only pages of
    // prompted tokens are shared.
    bool share_generated = true;
    bool shares_none = false;
    // Sequences have states, and so many slots for them; 0: they have none. What a state was at the
    // end of a page is kept nowhere, so no page is found then.
    size_t state_slots = 0;
    HashSecret secret = {};
  };

  // `windows`: of the groups of the cache's layers.
  SequencePages(size_t page_count, std::vector<AttentionWindow> windows, const Rules& rules)
      : rules_(rules), cache_(page_count, std::move(windows)), states_(rules.state_slots) {}

  // Pages of all groups that a sequence takes at most while it grows to so many tokens.
  size_t most_pages(size_t tokens) const;
  // Whether the sequence has a place for each of so many tokens.
  bool has_places(const Sequence& sequence, size_t tokens) const {
    return sequence.page_count() * rules_.page_tokens >= tokens;
  }

  // The known blocks from the first uncomputed page on, up to where what comes after them can be
  // computed.
  std::vector<BlockId> match(Sequence& sequence) const;
  // Adds the pages that all its known tokens take at once: held, known, or to be filled. A page
  // that is to be filled and may be found counts once among all that wait for it.
  void claim(Sequence& sequence, PageClaims& claims) const;
  // Holds what is known instead of computing it; the last known token is always left.
  void attach(Sequence& sequence);
  // Takes one more page for each group, to be written to, and adds them to `taken`. Returns false
  // and takes none if fewer pages than groups are without a holder.
  bool extend(Sequence& sequence, std::vector<uint32_t>& taken);
  // True when the sequence has a slot of its own, or needs none; false: none is free.
  bool take_state(Sequence& sequence);
  // Tokens have been computed: pages that are full become known, or give way to the same ones of
  // another sequence; what lies behind a window is given back.
  void publish(Sequence& sequence, size_t begin, size_t end);
  // All of its pages, and its state: it is computed from its first token on.
  void release(Sequence& sequence);
  // Whatever the sequence holds is not found any more.
  void forget(const Sequence& sequence);
  // Nothing is found any more.
  void forget_all() { cache_.forget_all(); }
  // No page is held, either, and no slot: for sequences that are gone. Takes no memory.
  void reset() {
    cache_.reset();
    states_.reset();
  }

  // The key of the first uncomputed page, if it may be found in the cache when it is full.
  const PrefixKey* next_shared_key(Sequence& sequence) const;
  // Keys of the pages that computing up to `end` fills.
  void add_filled_keys(Sequence& sequence, size_t end, std::vector<PrefixKey>& keys) const;

  const PrefixCache& cache() const { return cache_; }
  // Slots instead of pages.
  const PagePool& states() const { return states_; }

 private:
  bool may_find(const Sequence& sequence, size_t page) const;
  bool may_publish(const Sequence& sequence, size_t page) const;
  PrefixCache::Prefix prefix(Sequence& sequence, size_t page) const;
  // The first page of a group that the token behind so many looks at.
  size_t first_seen(size_t group, size_t tokens) const {
    return cache_.window(group).first_seen(tokens) / rules_.page_tokens;
  }
  void put_page(Sequence& sequence, size_t group, size_t page, std::optional<uint32_t> found);
  void share_block(Sequence& sequence, size_t page, BlockId block);
  void give_back(PageTable& table, size_t end);

  Rules rules_;
  PrefixCache cache_;
  PagePool states_;
};

}  // namespace lockstep
