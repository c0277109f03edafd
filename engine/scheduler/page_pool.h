// The KV cache's pages as numbers: which are free, and how many are promised to sequences that do
// not need them yet. A promise can always be kept, so a running sequence never waits for a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

class PagePool {
 public:
  explicit PagePool(size_t page_count);

  // Promises `count` pages; false if so many are not left.
  bool reserve(size_t count);
  // Takes back promises that were not taken up.
  void cancel_reservation(size_t count);
  // A page from the caller's promise: the one that was free for the longest time.
  uint32_t take();
  void give_back(uint32_t page);

  size_t page_count() const { return page_count_; }
  size_t free_count() const { return free_.size() - first_; }  // promised ones included
  size_t unreserved_count() const { return free_count() - reserved_; }

 private:
  size_t page_count_;
  std::vector<uint32_t> free_;  // a queue: [first_, end)
  size_t first_ = 0;
  size_t reserved_ = 0;
};

}  // namespace lockstep
