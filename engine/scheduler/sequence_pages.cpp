#include "engine/scheduler/sequence_pages.h"

#include <algorithm>
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
  PrefixCache::Prefix prefix{sequence.keys[page + 1], {}, tokens_of(page)};
  if (page > 0 && page <= sequence.pages.size()) prefix.before = sequence.pages[page - 1];
  return prefix;
}

std::vector<uint32_t> SequencePages::match(Sequence& sequence) const {
  std::vector<uint32_t> pages;
  std::optional<uint32_t> before;
  size_t page = sequence.computed / rules_.page_tokens;
  if (page > 0) before = sequence.pages[page - 1];
  for (; may_find(sequence, page); ++page) {
    PrefixCache::Prefix wanted = prefix(sequence, page);
    wanted.before = before;
    before = cache_.find(sequence.scope, wanted);
    if (!before) break;
    pages.push_back(*before);
  }
  return pages;
}

void SequencePages::claim(Sequence& sequence, PageClaims& claims) const {
  const size_t full = sequence.computed / rules_.page_tokens;
  const std::vector<uint32_t> known = match(sequence);
  for (size_t page = 0; page < full; ++page) claims.add(sequence.pages[page]);
  for (const uint32_t page : known) claims.add(page);
  for (size_t page = full + known.size(); page < pages_for(sequence.tokens.size()); ++page) {
    if (page < sequence.pages.size()) {
      claims.add(sequence.pages[page]);
    } else if (may_find(sequence, page)) {
      prefix(sequence, page);
      claims.add(sequence.keys[page + 1]);
    } else {
      claims.add_own();
    }
  }
}

void SequencePages::attach(Sequence& sequence) {
  for (size_t page = sequence.computed / rules_.page_tokens; may_find(sequence, page); ++page) {
    const auto found = cache_.find(sequence.scope, prefix(sequence, page));
    if (!found) return;
    cache_.hold(*found);
    if (page < sequence.pages.size()) {
      replace(sequence, page, *found);
    } else {
      sequence.pages.push_back(*found);
    }
    sequence.computed = (page + 1) * rules_.page_tokens;
    const size_t found_again = std::max(sequence.reached, page * rules_.page_tokens);
    const size_t prompt_end = std::min(sequence.computed, sequence.prompt);
    if (prompt_end > found_again) sequence.cached += prompt_end - found_again;
    sequence.reached = std::max(sequence.reached, sequence.computed);
  }
}

bool SequencePages::extend(Sequence& sequence) {
  const auto page = cache_.take();
  if (page) sequence.pages.push_back(*page);
  return page.has_value();
}

void SequencePages::publish(Sequence& sequence, size_t begin, size_t end) {
  for (size_t page = begin / rules_.page_tokens; (page + 1) * rules_.page_tokens <= end; ++page) {
    if (!may_publish(sequence, page)) return;
    const PrefixCache::Prefix full = prefix(sequence, page);
    const auto other = cache_.find(sequence.scope, full);
    if (!other) {
      cache_.insert(sequence.scope, full, sequence.pages[page]);
    } else if (*other != sequence.pages[page]) {
      cache_.hold(*other);
      replace(sequence, page, *other);
    }
  }
}

// With one that it holds as well.
void SequencePages::replace(Sequence& sequence, size_t page, uint32_t other) {
  cache_.release(std::exchange(sequence.pages[page], other));
  sequence.proven = std::min(sequence.proven, page * rules_.page_tokens);
}

void SequencePages::release(Sequence& sequence) {
  // Children first: what depends on another page is evicted before it.
  for (size_t page = sequence.pages.size(); page-- > 0;) cache_.release(sequence.pages[page]);
  sequence.pages.clear();
  sequence.computed = 0;
  sequence.proven = 0;
}

void SequencePages::forget(const Sequence& sequence) {
  for (const uint32_t page : sequence.pages) cache_.forget(page);
}

void SequencePages::forget_all() {
  for (size_t page = 0; page < cache_.pool().page_count(); ++page) {
    cache_.forget(static_cast<uint32_t>(page));
  }
}

const PrefixKey* SequencePages::next_shared_key(Sequence& sequence) const {
  const size_t page = sequence.computed / rules_.page_tokens;
  if (!may_find(sequence, page)) return nullptr;
  prefix(sequence, page);
  return &sequence.keys[page + 1];
}

void SequencePages::add_filled_keys(Sequence& sequence, size_t end,
                                    std::vector<PrefixKey>& keys) const {
  for (size_t page = sequence.computed / rules_.page_tokens;
       (page + 1) * rules_.page_tokens <= end && may_publish(sequence, page); ++page) {
    prefix(sequence, page);
    keys.push_back(sequence.keys[page + 1]);
  }
}

}  // namespace lockstep
