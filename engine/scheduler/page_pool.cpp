#include "engine/scheduler/page_pool.h"

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"

namespace lockstep {

PagePool::PagePool(size_t page_count) : holders_(page_count, 0), is_free_(page_count, true) {
  free_.reserve(2 * page_count + 1);  // the consumed front is one page more than all, at most
  reset();
}

void PagePool::reset() {
  std::ranges::fill(holders_, 0);
  is_free_.assign(is_free_.size(), true);
  free_.resize(holders_.size());
  std::iota(free_.begin(), free_.end(), uint32_t{0});
  first_ = 0;
  held_count_ = 0;
}

std::optional<uint32_t> PagePool::take() {
  if (free_count() == 0) return std::nullopt;
  const uint32_t page = free_[first_++];
  // The queue's consumed front is dropped once it is the larger part: constant time on average.
  if (first_ > holders_.size()) {
    free_.erase(free_.begin(), free_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
  is_free_[page] = false;
  hold(page);
  return page;
}

void PagePool::hold(uint32_t page) {
  CHECK(page < holders_.size() && !is_free_[page], "page {} is free", page);
  if (holders_[page]++ == 0) ++held_count_;
}

uint32_t PagePool::release(uint32_t page) {
  CHECK(page < holders_.size() && holders_[page] > 0, "page {} is held by nobody", page);
  if (--holders_[page] == 0) --held_count_;
  return holders_[page];
}

void PagePool::free(uint32_t page) {
  CHECK(page < holders_.size() && holders_[page] == 0 && !is_free_[page], "page {} is not to free",
        page);
  is_free_[page] = true;
  free_.push_back(page);
}

}  // namespace lockstep
