// A sequence's pages: found in the prefix cache, taken, made known to it, and given back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/scheduler/page_pool.h"
#include "engine/scheduler/prefix_cache.h"
#include "engine/scheduler/sequence.h"

namespace lockstep {

class SequencePages {
 public:
  struct Rules {
    size_t page_tokens = 64;
    // Whether a token's keys and values are the same, prompted or generated; if not, only pages of
    // prompted tokens are shared.
    bool share_generated = true;
    HashSecret secret = {};
  };

  SequencePages(size_t page_count, const Rules& rules) : rules_(rules), cache_(page_count) {}

  size_t pages_for(size_t tokens) const {
    return (tokens + rules_.page_tokens - 1) / rules_.page_tokens;
  }

  // The known pages from the first uncomputed one on.
  std::vector<uint32_t> match(Sequence& sequence) const;
  // Adds the pages of all its known tokens: held, known, or to be filled. A page that is to be
  // filled and may be found counts once among all that wait for it.
  void claim(Sequence& sequence, PageClaims& claims) const;
  // Holds what is known instead of computing it; the last known token is always left.
  void attach(Sequence& sequence);
  // One page more, to be written to; false if all are held.
  bool extend(Sequence& sequence);
  // Tokens have been computed: pages that are full become known, or give way to the same ones of
  // another sequence.
  void publish(Sequence& sequence, size_t begin, size_t end);
  void release(Sequence& sequence);
  // Whatever the sequence holds is not found any more.
  void forget(const Sequence& sequence);
  // Nothing is found any more.
  void forget_all();
  // No page is held, either: for sequences that are gone. Takes no memory.
  void reset() { cache_.reset(); }

  // The key of the first uncomputed page, if it may be found in the cache when it is full.
  const PrefixKey* next_shared_key(Sequence& sequence) const;
  // Keys of the pages that computing up to `end` fills.
  void add_filled_keys(Sequence& sequence, size_t end, std::vector<PrefixKey>& keys) const;

  const PrefixCache& cache() const { return cache_; }

 private:
  bool may_find(const Sequence& sequence, size_t page) const;
  bool may_publish(const Sequence& sequence, size_t page) const;
  PrefixCache::Prefix prefix(Sequence& sequence, size_t page) const;
  void replace(Sequence& sequence, size_t page, uint32_t other);

  Rules rules_;
  PrefixCache cache_;
};

}  // namespace lockstep
