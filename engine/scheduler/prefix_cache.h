// The pages of the KV cache, shared by prefix: sequences that need the keys and values of the same
// tokens, after the same tokens and for the same owner and salt, hold the same page. A page that
// no sequence holds stays until its memory is needed; then those go first that have not been used
// for the longest time, among the owners that keep at least as many as the mean. Only what can be
// found is known: the page before a known one is known as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/scheduler/page_pool.h"
#include "engine/scheduler/prefix_key.h"

namespace lockstep {

// Whose prefixes: only requests with the same two share pages.
struct CacheScope {
  std::string owner;
  std::string salt;

  bool operator==(const CacheScope&) const = default;
};

class PrefixCache {
 public:
  explicit PrefixCache(size_t page_count) : pool_(page_count), entries_(page_count) {}

  // A page's place: the page of the tokens before it, none for the first.
  struct Prefix {
    PrefixKey key;  // of all tokens up to the page's end
    std::optional<uint32_t> before;
    std::span<const int32_t> tokens;  // of the page
  };

  // A page to be written to, with one holder; evicts one if none is free. None if all are held.
  std::optional<uint32_t> take();
  void hold(uint32_t page);
  // A page that is known by its prefix is kept, another one is free.
  void release(uint32_t page);

  // The page that is known by this prefix. The key alone is never believed: tokens, the page before
  // and, for a first page, the scope are compared.
  std::optional<uint32_t> find(const CacheScope& scope, const Prefix& prefix) const;
  // A held page is full and known by its prefix from now on. Nothing happens if another one is, if
  // it already is, or if the page before it is not.
  void insert(const CacheScope& scope, const Prefix& prefix, uint32_t page);
  // Nobody finds the page any more, nor what follows it; those of them that nobody holds are free.
  void forget(uint32_t page);
  // Every page is free and nothing is known, whatever state a throw has left. Takes no memory.
  void reset();
  bool knows(uint32_t page) const { return entries_[page].has_value(); }

  // Nobody holds it, and it could be evicted.
  bool is_idle(uint32_t page) const { return knows(page) && pool_.holders(page) == 0; }
  size_t idle_count() const { return idle_count_; }
  size_t available_count() const { return pool_.free_count() + idle_count_; }
  uint64_t eviction_count() const { return eviction_count_; }
  const PagePool& pool() const { return pool_; }

 private:
  struct Entry {
    PrefixKey key;
    std::optional<uint32_t> before;  // a known page; none for the first
    std::vector<uint32_t> after;     // the known pages that follow
    CacheScope scope;
    std::vector<int32_t> tokens;
    uint64_t idle_since = 0;  // a count of releases
    std::list<uint32_t>::iterator idle_place = {};
  };
  struct KeyHash {
    size_t operator()(const PrefixKey& key) const { return key.low; }
  };

  void leave_idle(uint32_t page);
  uint32_t oldest() const;

  PagePool pool_;
  std::vector<std::optional<Entry>> entries_;  // by page
  std::unordered_map<PrefixKey, uint32_t, KeyHash> pages_;
  std::map<std::string, std::list<uint32_t>> idle_;  // by owner, oldest first; none is empty
  size_t idle_count_ = 0;
  uint64_t releases_ = 0;
  uint64_t eviction_count_ = 0;
};

}  // namespace lockstep
