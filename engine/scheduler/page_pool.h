// The KV cache's pages as numbers: which are free, and how many hold each of the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "engine/scheduler/prefix_key.h"

namespace lockstep {

class PagePool {
 public:
  explicit PagePool(size_t page_count);

  // A page that was free, the longest of all, now with one holder; none if no page is free.
  std::optional<uint32_t> take();
  // One holder more of a page that is not free.
  void hold(uint32_t page);
  // One holder less; how many are left. With none left the page is not free yet: see free().
  uint32_t release(uint32_t page);
  // A page without holders is free again. Takes no memory.
  void free(uint32_t page);
  // Every page is free, as at first. Takes no memory.
  void reset();

  uint32_t holders(uint32_t page) const { return holders_[page]; }
  size_t page_count() const { return holders_.size(); }
  size_t free_count() const { return free_.size() - first_; }
  size_t held_count() const { return held_count_; }  // with at least one holder

 private:
  std::vector<uint32_t> holders_;  // by page
  std::vector<bool> is_free_;      // by page
  std::vector<uint32_t> free_;     // a queue: [first_, end)
  size_t first_ = 0;
  size_t held_count_ = 0;
};

// The pages that several sequences need together: each counts once, however many share it.
class PageClaims {
 public:
  explicit PageClaims(size_t page_count) : claimed_(page_count, false) {}

  void add(uint32_t page) {
    if (!claimed_[page]) ++count_;
    claimed_[page] = true;
  }
  // A page of a group that is still to be filled.
  void add(const PrefixKey& key, size_t group) {
    count_ += keys_.emplace(key, group).second ? 1 : 0;
  }
  // A page that is still to be filled, for one sequence alone.
  void add_own() { ++count_; }

  size_t count() const { return count_; }

 private:
  std::vector<bool> claimed_;  // by page
  std::set<std::pair<PrefixKey, size_t>> keys_;
  size_t count_ = 0;
};

}  // namespace lockstep
