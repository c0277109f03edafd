// A sequence's pages: found in the prefix cache, taken, made known to it, and given back; and where
// layers keep states (docs/state.md), the slot of its own, which it takes, copies from a checkpoint
// and copies into new ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/scheduler/page_pool.h"
#include "engine/scheduler/page_store.h"
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
    // Sequences have states, and so many slots for them and for checkpoints; 0: they have none.
    size_t state_slots = 0;
    HashSecret secret = {};
    PageStore* store = nullptr;     // that keeps pages longer than the cache; null: none does
    CacheEvents* events = nullptr;  // PrefixCache::tell()
  };

  // `windows`: of the groups of the cache's layers.
  SequencePages(size_t page_count, std::vector<AttentionWindow> windows, const Rules& rules)
      : rules_(rules), cache_(page_count, std::move(windows), rules.state_slots) {
    if (has_store()) cache_.list_unsaved();
    cache_.tell(rules.events);
  }

  // Pages of all groups that a sequence takes at most while it grows to so many tokens.
  size_t most_pages(size_t tokens) const;
  // Whether the sequence has a place for each of so many tokens.
  bool has_places(const Sequence& sequence, size_t tokens) const {
    return sequence.page_count() * rules_.page_tokens >= tokens;
  }

  // The known blocks from the first uncomputed page on, up to where what comes after them can be
  // computed: where all that windows look at is there, and a checkpoint.
  std::vector<BlockId> match(Sequence& sequence) const;
  // Adds the pages that all its known tokens take at once: held, known, or to be filled. A page
  // that is to be filled and may be found counts once among all that wait for it.
  void claim(Sequence& sequence, PageClaims& claims) const;
  // Pages that the store holds of what attach() could find become known, as far as they are at
  // hand, and the checkpoint behind the last of them. The number of tokens that attach() finds by
  // that, whether the store has given anything of the prefix that it had not given before, and
  // whether it is worth waiting for more.
  struct Fetched {
    size_t tokens = 0;
    bool has_advanced = false;
    bool is_coming = false;
  };
  Fetched fetch(Sequence& sequence);
  // Pages that the store holds of it are read ahead, as far as there is space.
  void read_ahead(Sequence& sequence) {
    if (has_store()) ask(sequence, stored_end(sequence));
  }
  // Saves a page that has been idle, after what lies before it in its prefix, or a checkpoint:
  // where few are left that may make way, or, with `all`, as long as there is any.
  enum class Saved : uint8_t { kOne, kNoSpace, kNothing };
  Saved save_one(bool all);
  // Holds what is known instead of computing it; the last known token is always left. A checkpoint
  // takes the place of the sequence's own slot.
  void attach(Sequence& sequence);
  // Takes one more page for each group, to be written to, and adds them to `taken`. Returns false
  // and takes none if fewer pages than groups are without a holder.
  bool extend(Sequence& sequence, std::vector<uint32_t>& taken);
  // True when the sequence has a slot of its own, or needs none; false: all are held. Checkpoints
  // make way; that one which the sequence is to begin from becomes its own where no other is left.
  bool take_state(Sequence& sequence);
  // The end of the tokens that one chunk may have: all are prompted, or all were generated and are
  // computed again; of these a chunk ends where a checkpoint is wanted.
  size_t stretch_end(const Sequence& sequence) const;
  // Before tokens up to `end` are computed: takes slots for the checkpoints that are wanted on the
  // way and are not there yet, as long as there are any (Sequence::new_checkpoints).
  void take_checkpoints(Sequence& sequence, size_t end);
  // They have been computed and are published: each slot is the checkpoint of the block that its
  // tokens end with, if that is known and has none.
  void keep_checkpoints(Sequence& sequence);
  // The state of an answer that ends at a border is kept for the block before that, if it is known
  // and has none; in the place of the answer's last one, but where one is wanted. Not during a
  // draft, and not of a prompt.
  void keep_answer(Sequence& sequence);
  // The copies to be made before the next pass, in this order. Once.
  std::vector<SlotCopy> take_copies() { return std::exchange(copies_, {}); }
  // Tokens have been computed: pages that are full become known, or give way to the same ones of
  // another sequence; what lies behind a window is given back.
  void publish(Sequence& sequence, size_t begin, size_t end);
  // Before a draft is computed: its state is copied, so that it can be taken back. A checkpoint
  // makes way for that; false: all slots are held.
  bool copy_state_before_draft(Sequence& sequence);
  // All of the draft was accepted: the pages become known, and the state is kept as that of an
  // answer.
  void accept_draft(Sequence& sequence);
  // A token was rejected: the state from before the draft is the sequence's again, and the tokens
  // that are known since are to be computed again.
  void take_state_back(Sequence& sequence);
  // Gives back the pages behind those that its known tokens need: drafted ones were rejected.
  void trim(Sequence& sequence);
  // All of its pages, and its state: it is computed from its first token on.
  void release(Sequence& sequence);
  // Whatever the sequence holds is not found any more.
  void forget(const Sequence& sequence);
  // Nothing is found any more.
  void forget_all() {
    cache_.forget_all();
    copies_.clear();
  }
  // No page is held, either, and no slot: for sequences that are gone. Takes no memory.
  void reset() {
    cache_.reset();
    copies_.clear();
  }

  // Adds the keys of what others may wait for while the sequence is computed up to `end`: of the
  // pages that it fills. With states, of the page behind which the first of its next checkpoints
  // will be: a sequence that shares a later one shares that.
  void add_awaited_keys(Sequence& sequence, size_t end, std::vector<PrefixKey>& keys) const;
  // Whether the sequence can begin behind one of these pages when it is known: its first uncomputed
  // one, or, with states, any behind that.
  bool awaits(Sequence& sequence, std::span<const PrefixKey> keys) const;

  const PrefixCache& cache() const { return cache_; }
  bool has_states() const { return rules_.state_slots > 0; }
  // The border of pages behind so many tokens, or at their end.
  size_t next_border(size_t tokens) const {
    return (tokens + rules_.page_tokens - 1) / rules_.page_tokens * rules_.page_tokens;
  }

 private:
  // The known blocks from a sequence's first uncomputed page on.
  struct Found {
    std::vector<BlockId> blocks;
    size_t usable = 0;  // the first so many: what comes after them can be computed
  };
  Found find(Sequence& sequence) const;
  bool has_store() const { return rules_.store != nullptr && !rules_.shares_none; }
  // A walk from page to page of a sequence's prefix: the block of the last one, 0 once the cache
  // has none, and whether the next one can be known.
  struct KnownBlocks {
    BlockId block = 0;
    bool goes_on = true;
  };
  // Before the first step, to `page`.
  KnownBlocks known_blocks(const Sequence& sequence, size_t page) const;
  // On to the next page, `page`; returns its key.
  PrefixKey step(KnownBlocks& known, Sequence& sequence, size_t page) const;
  size_t stored_end(Sequence& sequence) const;
  StoredKey page_key(const CacheScope& scope, const PrefixKey& prefix, size_t group) const;
  StoredKey state_key(const CacheScope& scope, const PrefixKey& prefix) const;
  // `block`: known by the key, or 0.
  bool has_checkpoint(BlockId block) const { return block != 0 && cache_.checkpoint(block); }
  struct Asked {
    size_t here = 0;  // pages of the prefix of which all is at hand
    bool is_coming = false;
  };
  Asked ask(Sequence& sequence, size_t end) const;
  enum class Loaded : uint8_t { kAll, kMoreIsHere, kNotAll };
  Loaded load(Sequence& sequence, size_t end, size_t seen_end);
  bool load_checkpoint(BlockId block);
  bool is_short_of_clean_pages() const;
  bool is_short_of_clean_slots() const;
  std::optional<std::pair<size_t, uint32_t>> unsaved_page(BlockId block) const;
  bool has_unsaved(BlockId block) const;
  Saved save_next(bool makes_way);
  Saved save_checkpoint(BlockId block, bool makes_way);
  void copy_states_now();
  bool load_block(Sequence& sequence, size_t page, size_t seen_end, BlockId& block,
                  std::vector<uint32_t>& held, size_t& load_count);
  // With a checkpoint of the last of its blocks.
  void begin_from(Sequence& sequence, BlockId block);
  std::optional<size_t> next_checkpoint(const Sequence& sequence) const;
  std::optional<size_t> wanted_page(const Sequence& sequence, size_t done, size_t last) const;
  BlockId block_before(const Sequence& sequence, size_t page) const;
  bool take_source(Sequence& sequence);
  void release_state(Sequence& sequence);
  void drop_state_before(Sequence& sequence);
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
  std::vector<SlotCopy> copies_;
  std::vector<BlockId> to_save_;  // a chain of blocks, the first one last; some may be gone
};

}  // namespace lockstep
