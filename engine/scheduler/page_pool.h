// The KV cache's pages as numbers: which are free, and how many hold each of the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

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

}  // namespace lockstep
