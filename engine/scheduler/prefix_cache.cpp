#include "engine/scheduler/prefix_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/check.h"

namespace lockstep {

std::optional<uint32_t> PrefixCache::take() {
  if (pool_.free_count() == 0 && idle_count_ > 0) {
    forget(oldest());
    ++eviction_count_;
  }
  return pool_.take();
}

// A child is released before its parent, so it is never left behind by it.
uint32_t PrefixCache::oldest() const {
  uint64_t since = std::numeric_limits<uint64_t>::max();
  uint32_t page = 0;
  for (const auto& [owner, pages] : idle_) {
    const uint64_t front = entries_[pages.front()]->idle_since;
    if (pages.size() * idle_.size() < idle_count_ || front >= since) continue;
    since = front;
    page = pages.front();
  }
  return page;
}

void PrefixCache::hold(uint32_t page) {
  if (is_idle(page)) leave_idle(page);
  pool_.hold(page);
}

void PrefixCache::release(uint32_t page) {
  if (pool_.release(page) > 0) return;
  if (!knows(page)) {
    pool_.free(page);
    return;
  }
  Entry& entry = *entries_[page];
  std::list<uint32_t>& own = idle_[entry.scope.owner];
  entry.idle_since = ++releases_;
  entry.idle_place = own.insert(own.end(), page);
  ++idle_count_;
}

void PrefixCache::leave_idle(uint32_t page) {
  Entry& entry = *entries_[page];
  const auto own = idle_.find(entry.scope.owner);
  own->second.erase(entry.idle_place);
  if (own->second.empty()) idle_.erase(own);
  --idle_count_;
}

std::optional<uint32_t> PrefixCache::find(const CacheScope& scope, const Prefix& prefix) const {
  const auto found = pages_.find(prefix.key);
  if (found == pages_.end()) return std::nullopt;
  const Entry& entry = *entries_[found->second];
  const bool same = prefix.before == entry.before && entry.scope == scope &&
                    std::ranges::equal(entry.tokens, prefix.tokens);
  return same ? std::optional(found->second) : std::nullopt;
}

void PrefixCache::insert(const CacheScope& scope, const Prefix& prefix, uint32_t page) {
  CHECK(pool_.holders(page) > 0, "page {} is held by nobody", page);
  if ((prefix.before && !knows(*prefix.before)) || knows(page)) return;
  if (!pages_.emplace(prefix.key, page).second) return;
  if (prefix.before) entries_[*prefix.before]->after.push_back(page);
  Entry& entry = entries_[page].emplace();
  entry.key = prefix.key;
  entry.before = prefix.before;
  entry.scope = scope;
  entry.tokens.assign(prefix.tokens.begin(), prefix.tokens.end());
}

void PrefixCache::forget(uint32_t page) {
  if (!knows(page)) return;
  if (const auto before = entries_[page]->before) std::erase(entries_[*before]->after, page);
  std::vector<uint32_t> left = {page};
  while (!left.empty()) {
    const uint32_t next = left.back();
    left.pop_back();
    const bool idle = is_idle(next);
    if (idle) leave_idle(next);
    const Entry& entry = *entries_[next];
    left.insert(left.end(), entry.after.begin(), entry.after.end());
    pages_.erase(entry.key);
    entries_[next].reset();
    if (idle) pool_.free(next);
  }
}

void PrefixCache::reset() {
  for (auto& entry : entries_) entry.reset();
  pages_.clear();
  idle_.clear();
  idle_count_ = 0;
  pool_.reset();
}

}  // namespace lockstep
