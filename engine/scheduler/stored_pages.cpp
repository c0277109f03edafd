// A sequence's pages, and its checkpoints, as a store outside of the cache has them: found, loaded,
// and saved (docs/tiers.md).
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "engine/scheduler/sequence_pages.h"

namespace lockstep {
namespace {

// Pages that are copied from the store for one sequence before a pass: others wait for that.
constexpr size_t kLoadsMost = 32;

}  // namespace

// Owners that have the same number, which is as good as impossible, share what they may keep.
StoredKey SequencePages::page_key(const CacheScope& scope, const PrefixKey& prefix,
                                  size_t group) const {
  return {.prefix = prefix,
          .group = group,
          .kind = StoredKind::kPage,
          .owner = root_key(rules_.secret, scope.owner, "").low};
}

StoredKey SequencePages::state_key(const CacheScope& scope, const PrefixKey& prefix) const {
  StoredKey key = page_key(scope, prefix, 0);
  key.kind = StoredKind::kState;
  return key;
}

SequencePages::KnownBlocks SequencePages::known_blocks(const Sequence& sequence,
                                                       size_t page) const {
  const BlockId block = page > 0 ? sequence.blocks[page - 1] : 0;
  return {.block = block, .goes_on = page == 0 || cache_.is_known(block)};
}

PrefixKey SequencePages::step(KnownBlocks& known, Sequence& sequence, size_t page) const {
  PrefixCache::Prefix wanted = prefix(sequence, page);
  wanted.before = known.block;
  known.block = known.goes_on ? cache_.find(sequence.scope, wanted) : 0;
  known.goes_on = known.block != 0;
  return wanted.key;
}

// Up to which page the cache or the store holds all that what comes after it looks at.
size_t SequencePages::stored_end(Sequence& sequence) const {
  size_t page = sequence.computed / rules_.page_tokens;
  size_t end = page;
  std::vector<size_t> there(cache_.group_count(), page);  // as in find()
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    there[group] = page - sequence.tables[group].given_back;
  }
  KnownBlocks known = known_blocks(sequence, page);
  for (; may_find(sequence, page); ++page) {
    const PrefixKey key = step(known, sequence, page);
    bool suffices = true;
    for (size_t group = 0; group < there.size(); ++group) {
      const bool has = (known.goes_on && cache_.page(known.block, group)) ||
                       rules_.store->contains(page_key(sequence.scope, key, group));
      if (!has && cache_.window(group).sees_all()) return end;
      there[group] = has ? there[group] + 1 : 0;
      suffices =
          suffices && there[group] >= page + 1 - first_seen(group, (page + 1) * rules_.page_tokens);
    }
    if (!suffices) continue;
    const bool goes_on = !has_states() || has_checkpoint(known.block) ||
                         rules_.store->contains(state_key(sequence.scope, key));
    if (goes_on) end = page + 1;
  }
  return end;
}

SequencePages::Asked SequencePages::ask(Sequence& sequence, size_t end) const {
  Asked asked;
  asked.here = sequence.computed / rules_.page_tokens;
  KnownBlocks known = known_blocks(sequence, asked.here);
  for (size_t page = asked.here; page < end; ++page) {
    const PrefixKey key = step(known, sequence, page);
    bool is_here = true;
    for (size_t group = 0; group < cache_.group_count(); ++group) {
      const bool is_needed = page >= first_seen(group, end * rules_.page_tokens);
      if (!is_needed || (known.goes_on && cache_.page(known.block, group))) continue;
      const PageStore::Answer answer = rules_.store->ask(page_key(sequence.scope, key, group));
      if (answer == PageStore::Answer::kAbsent) return asked;
      is_here = is_here && answer == PageStore::Answer::kHere;
    }
    if (has_states() && page + 1 == end && !has_checkpoint(known.block)) {
      const PageStore::Answer answer = rules_.store->ask(state_key(sequence.scope, key));
      if (answer == PageStore::Answer::kAbsent) return asked;
      is_here = is_here && answer == PageStore::Answer::kHere;
    }
    if (!is_here) asked.is_coming = true;
    if (!asked.is_coming) asked.here = page + 1;
  }
  return asked;
}

SequencePages::Fetched SequencePages::fetch(Sequence& sequence) {
  Fetched fetched;
  const size_t first = sequence.computed / rules_.page_tokens;
  if (!has_store() || first > sequence.blocks.size()) return fetched;
  const size_t end = stored_end(sequence);
  const size_t known = match(sequence).size();
  if (end <= first + known) return fetched;
  Asked asked = ask(sequence, end);
  if (asked.here > first + known) {
    const size_t loaded_before = sequence.loaded;
    const Loaded loaded = load(sequence, asked.here, end);
    fetched.has_advanced = sequence.loaded > loaded_before;
    const size_t now_known = match(sequence).size();
    if (now_known > known) fetched.tokens = (now_known - known) * rules_.page_tokens;
    if (loaded == Loaded::kNotAll) return fetched;
    const size_t here_before = asked.here;
    asked = ask(sequence, end);  // in the space of what has been loaded
    // Pieces that have come meanwhile are loaded before the next pass.
    fetched.is_coming = loaded == Loaded::kMoreIsHere || asked.here > here_before;
  }
  fetched.is_coming = fetched.is_coming || asked.is_coming;
  return fetched;
}

// Not all: the store has lost something, or all pages of the cache are held.
SequencePages::Loaded SequencePages::load(Sequence& sequence, size_t end, size_t seen_end) {
  std::vector<uint32_t> held;  // so that none makes way for one that follows it
  size_t load_count = 0;
  const size_t first = sequence.computed / rules_.page_tokens;
  BlockId block = first > 0 ? sequence.blocks[first - 1] : 0;
  bool is_whole = true;
  size_t page = first;
  for (; page < end && is_whole && load_count < kLoadsMost; ++page) {
    is_whole = load_block(sequence, page, seen_end, block, held, load_count);
  }
  for (; !held.empty(); held.pop_back()) cache_.release(held.back());
  if (load_count > 0) sequence.loaded = std::max(sequence.loaded, page);
  if (block != 0) cache_.tidy(block);
  if (!is_whole) return Loaded::kNotAll;
  return page < end ? Loaded::kMoreIsHere : Loaded::kAll;
}

// `block`: the one before the page's, and then the page's.
bool SequencePages::load_block(Sequence& sequence, size_t page, size_t seen_end, BlockId& block,
                               std::vector<uint32_t>& held, size_t& load_count) {
  PrefixCache::Prefix wanted = prefix(sequence, page);
  wanted.before = block;
  const BlockId known = cache_.find(sequence.scope, wanted);
  std::vector<std::pair<size_t, uint32_t>> loaded;  // group and page
  for (size_t group = 0; group < cache_.group_count(); ++group) {
    if (page < first_seen(group, seen_end * rules_.page_tokens)) continue;
    const auto own = known != 0 ? cache_.page(known, group) : std::nullopt;
    if (own) {
      const bool is_saved = cache_.is_saved(*own);
      cache_.hold(*own);
      if (is_saved) cache_.note_saved(*own);  // it is held for a moment
      held.push_back(*own);
      continue;
    }
    const auto taken = cache_.take();
    if (!taken) return false;
    held.push_back(*taken);
    if (!rules_.store->load(page_key(sequence.scope, wanted.key, group), *taken)) return false;
    loaded.emplace_back(group, *taken);
    ++load_count;
  }
  // Pages that have made way for these may have taken the block with it.
  BlockId own_block = cache_.find(sequence.scope, wanted);
  if (own_block == 0) own_block = cache_.insert(sequence.scope, wanted);
  if (own_block == 0) return false;
  for (const auto& [group, filled] : loaded) {
    if (cache_.page(own_block, group)) continue;
    cache_.put(own_block, group, filled);
    cache_.note_saved(filled);
  }
  block = own_block;
  const bool is_last = page + 1 == seen_end;
  if (!has_states() || !is_last || has_checkpoint(block)) return true;
  ++load_count;
  return load_checkpoint(block);
}

// Pages that it follows are known, and held. Copies that are still to be made may read the slot
// that it gets, or write to it: they go first.
bool SequencePages::load_checkpoint(BlockId block) {
  copy_states_now();
  const auto slot = cache_.add_checkpoint(block);
  if (!slot) return false;
  if (!rules_.store->load(state_key(cache_.scope(block), cache_.key(block)), *slot)) {
    cache_.drop_checkpoint(block);
    return false;
  }
  cache_.note_checkpoint_saved(block);
  return true;
}

void SequencePages::copy_states_now() {
  if (copies_.empty()) return;
  rules_.store->copy_states(copies_);
  copies_.clear();
}

// Two passes take no more.
bool SequencePages::is_short_of_clean_pages() const {
  const size_t wanted = 2 * cache_.group_count() * (rules_.pass_tokens / rules_.page_tokens + 1);
  return cache_.clean_count() < std::min(wanted, cache_.pool().page_count() / 2);
}

// In a pass each running sequence takes one at most, for its answer or for the state from before
// its draft, and there are three slots for each sequence at least. Beside that prompts take some:
// one for four pages, and for their ends.
bool SequencePages::is_short_of_clean_slots() const {
  const size_t slots = rules_.state_slots;
  const size_t wanted = (slots + 2) / 3 + rules_.pass_tokens / rules_.page_tokens / 4 + 1;
  return cache_.slots().clean_count() < std::min(wanted, (slots + 1) / 2);
}

std::optional<std::pair<size_t, uint32_t>> SequencePages::unsaved_page(BlockId block) const {
  for (size_t group = 0; group < cache_.group_count(); ++group) {
    const auto page = cache_.page(block, group);
    if (page && !cache_.is_saved(*page)) return std::pair(group, *page);
  }
  return std::nullopt;
}

bool SequencePages::has_unsaved(BlockId block) const {
  if (unsaved_page(block)) return true;
  const auto slot = cache_.checkpoint(block);
  return slot && !cache_.slots().is_saved(*slot);
}

SequencePages::Saved SequencePages::save_one(bool all) {
  if (!has_store()) return Saved::kNothing;
  Saved saved = Saved::kNothing;
  if (all || is_short_of_clean_pages()) saved = save_next(!all);
  if (saved == Saved::kOne || !has_states()) return saved;
  // Those that make way before their pages do.
  if (!all && !is_short_of_clean_slots()) return saved;
  const auto slot = cache_.slots().least_unsaved();
  return slot ? save_checkpoint(cache_.slots().block(*slot), !all) : saved;
}

// A page, or the checkpoint that goes with the pages of its block.
SequencePages::Saved SequencePages::save_next(bool makes_way) {
  while (!to_save_.empty() && !has_unsaved(to_save_.back())) to_save_.pop_back();
  if (to_save_.empty()) {
    // All that lies before a saved block is saved.
    BlockId block = cache_.first_unsaved();
    for (; block != 0 && has_unsaved(block); block = cache_.before(block)) {
      to_save_.push_back(block);
    }
  }
  if (to_save_.empty()) return Saved::kNothing;
  const BlockId block = to_save_.back();
  const auto unsaved = unsaved_page(block);
  if (!unsaved) return save_checkpoint(block, makes_way);
  const auto [group, page] = *unsaved;
  if (!rules_.store->save(page_key(cache_.scope(block), cache_.key(block), group), page, makes_way))
    return Saved::kNoSpace;
  cache_.note_saved(page);
  return Saved::kOne;
}

SequencePages::Saved SequencePages::save_checkpoint(BlockId block, bool makes_way) {
  copy_states_now();  // its state may be among those that are still to be copied
  const uint32_t slot = cache_.checkpoint(block).value();
  if (!rules_.store->save(state_key(cache_.scope(block), cache_.key(block)), slot, makes_way)) {
    return Saved::kNoSpace;
  }
  cache_.note_checkpoint_saved(block);
  return Saved::kOne;
}

}  // namespace lockstep
