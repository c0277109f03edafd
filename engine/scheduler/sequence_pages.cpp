#include "engine/scheduler/sequence_pages.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

namespace lockstep {

// The last known token's row is wanted, so it is computed; so are all whose rows are wanted.
bool SequencePages::may_find(const Sequence& sequence, size_t page) const {
  const size_t end = (page + 1) * rules_.page_tokens;
  if (sequence.wants_all() && sequence.rows_done < sequence.prompt) return false;
  return end < sequence.tokens.size() && may_publish(sequence, page);
}

bool SequencePages::may_publish(const Sequence& sequence, size_t page) const {
  if (rules_.shares_none) return false;
  const size_t end = (page + 1) * rules_.page_tokens;
  return end <= (rules_.share_generated ? sequence.tokens.size() : sequence.prompt);
}

PrefixCache::Prefix SequencePages::prefix(Sequence& sequence, size_t page) const {
  const auto tokens_of = [&](size_t index) {
    return std::span<const int32_t>(sequence.tokens)
        .subspan(index * rules_.page_tokens, rules_.page_tokens);
  };
  if (sequence.keys.empty()) {
    sequence.keys.push_back(root_key(rules_.secret, sequence.scope.owner, sequence.scope.salt));
  }
  while (sequence.keys.size() < page + 2) {
    const size_t next = sequence.keys.size() - 1;
    sequence.keys.push_back(next_key(rules_.secret, sequence.keys.back(), tokens_of(next)));
  }
  PrefixCache::Prefix prefix{sequence.keys[page + 1], 0, tokens_of(page)};
  if (page > 0 && page <= sequence.blocks.size()) prefix.before = sequence.blocks[page - 1];
  return prefix;
}

size_t SequencePages::most_pages(size_t tokens) const {
  return lockstep::most_pages(cache_.windows(), tokens, rules_.pass_tokens, rules_.page_tokens);
}

std::vector<BlockId> SequencePages::match(Sequence& sequence) const {
  Found found = find(sequence);
  found.blocks.resize(found.usable);
  return std::move(found.blocks);
}

SequencePages::Found SequencePages::find(Sequence& sequence) const {
  Found found;
  size_t page = sequence.computed / rules_.page_tokens;
  // By group: how many pages up to the one at hand are there, without a gap.
  std::vector<size_t> there(cache_.group_count(), page);
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    there[group] = page - sequence.tables[group].given_back;
  }
  BlockId before = page > 0 && page <= sequence.blocks.size() ? sequence.blocks[page - 1] : 0;
  for (; may_find(sequence, page); ++page) {
    PrefixCache::Prefix wanted = prefix(sequence, page);
    wanted.before = before;
    before = cache_.find(sequence.scope, wanted);
    if (before == 0) break;
    found.blocks.push_back(before);
    const size_t end = page + 1;
    bool suffices = !has_states() || cache_.checkpoint(before);
    for (size_t group = 0; group < there.size(); ++group) {
      there[group] = cache_.page(before, group) ? there[group] + 1 : 0;
      suffices = suffices && there[group] >= end - first_seen(group, end * rules_.page_tokens);
    }
    if (suffices) found.usable = found.blocks.size();
  }
  return found;
}

void SequencePages::claim(Sequence& sequence, PageClaims& claims) const {
  const size_t full = sequence.computed / rules_.page_tokens;
  const std::vector<BlockId> known = match(sequence);
  const size_t length = sequence.tokens.size();
  const size_t end = (length + rules_.page_tokens - 1) / rules_.page_tokens;
  for (size_t group = 0; group < cache_.group_count(); ++group) {
    const size_t most =
        cache_.window(group).most_pages(length, rules_.pass_tokens, rules_.page_tokens);
    for (size_t page = end - most; page < end; ++page) {
      const auto found = page >= full && page < full + known.size()
                             ? cache_.page(known[page - full], group)
                             : std::nullopt;
      if (found) {
        claims.add(*found);
      } else if (page < sequence.page_count() && page >= sequence.tables[group].given_back) {
        claims.add(sequence.tables[group].pages[page]);
      } else if (!has_states() && may_find(sequence, page)) {
        prefix(sequence, page);
        claims.add(sequence.keys[page + 1], group);
      } else {
        claims.add_own();
      }
    }
  }
}

// The page found, or none, in the place of the sequence's own.
void SequencePages::put_page(Sequence& sequence, size_t group, size_t page,
                             std::optional<uint32_t> found) {
  PageTable& table = sequence.tables[group];
  if (found) cache_.hold(*found);
  if (page < table.pages.size()) {
    cache_.release(std::exchange(table.pages[page], found.value_or(0)));
    sequence.proven = std::min(sequence.proven, page * rules_.page_tokens);
  } else {
    table.pages.push_back(found.value_or(0));
  }
}

void SequencePages::attach(Sequence& sequence) {
  auto [blocks, usable] = find(sequence);
  const size_t first = sequence.computed / rules_.page_tokens;
  if (has_states() && usable < blocks.size()) sequence.fork = first + blocks.size();
  blocks.resize(usable);
  if (blocks.empty()) return;
  sequence.tables.resize(cache_.group_count());
  const size_t end = (first + blocks.size()) * rules_.page_tokens;
  for (size_t group = 0; group < cache_.group_count(); ++group) {
    const size_t seen = first_seen(group, end);
    give_back(sequence.tables[group], std::min(seen, first));
    for (size_t index = 0; index < blocks.size(); ++index) {
      const size_t page = first + index;
      const bool is_seen = page >= seen;
      put_page(sequence, group, page, is_seen ? cache_.page(blocks[index], group) : std::nullopt);
      if (!is_seen) ++sequence.tables[group].given_back;
    }
  }
  for (const BlockId block : blocks) {
    const size_t page = sequence.blocks.size();
    sequence.blocks.push_back(block);
    sequence.computed = (page + 1) * rules_.page_tokens;
    const size_t found_again = std::max(sequence.reached, page * rules_.page_tokens);
    const size_t prompt_end = std::min(sequence.computed, sequence.prompt);
    if (prompt_end > found_again) sequence.cached += prompt_end - found_again;
    sequence.reached = std::max(sequence.reached, sequence.computed);
  }
  if (has_states()) begin_from(sequence, blocks.back());
}

bool SequencePages::extend(Sequence& sequence, std::vector<uint32_t>& taken) {
  if (cache_.available_count() < cache_.group_count()) return false;
  sequence.tables.resize(cache_.group_count());
  for (PageTable& table : sequence.tables) {
    const uint32_t page = cache_.take().value();
    table.pages.push_back(page);
    taken.push_back(page);
  }
  return true;
}

void SequencePages::publish(Sequence& sequence, size_t begin, size_t end) {
  for (size_t page = begin / rules_.page_tokens; (page + 1) * rules_.page_tokens <= end; ++page) {
    if (!may_publish(sequence, page) || sequence.blocks.size() != page) break;
    const PrefixCache::Prefix full = prefix(sequence, page);
    BlockId block = cache_.find(sequence.scope, full);
    if (block == 0) block = cache_.insert(sequence.scope, full);
    if (block == 0) break;
    sequence.blocks.push_back(block);
    share_block(sequence, page, block);
  }
  // No token after these looks at what lies before.
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    give_back(sequence.tables[group], first_seen(group, end));
  }
}

// The block gets the sequence's pages that it does not have, and the sequence the block's.
void SequencePages::share_block(Sequence& sequence, size_t page, BlockId block) {
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    const PageTable& table = sequence.tables[group];
    if (page < table.given_back) continue;
    const uint32_t own = table.pages[page];
    const auto other = cache_.page(block, group);
    if (!other) {
      cache_.put(block, group, own);
    } else if (*other != own) {
      put_page(sequence, group, page, other);
    }
  }
}

// The first pages, up to `end`.
void SequencePages::give_back(PageTable& table, size_t end) {
  for (; table.given_back < end; ++table.given_back) {
    cache_.release(std::exchange(table.pages[table.given_back], 0));
  }
}

void SequencePages::trim(Sequence& sequence) {
  const size_t needed = (sequence.tokens.size() + rules_.page_tokens - 1) / rules_.page_tokens;
  while (sequence.page_count() > needed) {
    for (PageTable& table : sequence.tables) {
      cache_.release(table.pages.back());
      table.pages.pop_back();
    }
  }
}

void SequencePages::release(Sequence& sequence) {
  // The last first: what depends on another page is evicted before it.
  for (size_t page = sequence.page_count(); page-- > 0;) {
    for (const PageTable& table : sequence.tables) {
      if (page >= table.given_back) cache_.release(table.pages[page]);
    }
  }
  release_state(sequence);
  sequence.tables.clear();
  sequence.blocks.clear();
  sequence.checkpoint = 0;
  sequence.fork = 0;
  sequence.computed = 0;
  sequence.proven = 0;
}

void SequencePages::forget(const Sequence& sequence) {
  if (has_store()) {
    std::vector<PrefixKey> keys(sequence.keys);  // whether the cache still has them or not
    if (!sequence.blocks.empty()) {
      std::ranges::copy(cache_.keys_from(sequence.blocks.front()), std::back_inserter(keys));
    }
    for (const PrefixKey& key : keys) {
      for (size_t group = 0; group < cache_.group_count(); ++group) {
        rules_.store->erase(page_key(sequence.scope, key, group));
      }
      if (has_states()) rules_.store->erase(state_key(sequence.scope, key));
    }
  }
  for (const BlockId block : sequence.blocks) cache_.forget(block);
}

void SequencePages::add_awaited_keys(Sequence& sequence, size_t end,
                                     std::vector<PrefixKey>& keys) const {
  if (has_states()) {
    const auto checkpoint = next_checkpoint(sequence);
    if (!checkpoint) return;
    const size_t pages = *checkpoint / rules_.page_tokens;
    prefix(sequence, pages - 1);
    keys.push_back(sequence.keys[pages]);
    return;
  }
  for (size_t page = sequence.computed / rules_.page_tokens;
       (page + 1) * rules_.page_tokens <= end && may_publish(sequence, page); ++page) {
    prefix(sequence, page);
    keys.push_back(sequence.keys[page + 1]);
  }
}

bool SequencePages::awaits(Sequence& sequence, std::span<const PrefixKey> keys) const {
  if (keys.empty()) return false;
  for (size_t page = sequence.computed / rules_.page_tokens; may_find(sequence, page); ++page) {
    prefix(sequence, page);
    if (std::ranges::find(keys, sequence.keys[page + 1]) != keys.end()) return true;
    if (!has_states()) break;
  }
  return false;
}

}  // namespace lockstep
