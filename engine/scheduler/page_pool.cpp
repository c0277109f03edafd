#include "engine/scheduler/page_pool.h"

#include "engine/base/check.h"

namespace lockstep {

PagePool::PagePool(size_t page_count) : page_count_(page_count) {
  for (size_t page = 0; page < page_count; ++page) free_.push_back(static_cast<uint32_t>(page));
}

bool PagePool::reserve(size_t count) {
  if (count > unreserved_count()) return false;
  reserved_ += count;
  return true;
}

void PagePool::cancel_reservation(size_t count) {
  CHECK(count <= reserved_, "{} pages of {} reserved ones", count, reserved_);
  reserved_ -= count;
}

uint32_t PagePool::take() {
  CHECK(reserved_ > 0 && free_count() > 0, "no page is reserved");
  --reserved_;
  const uint32_t page = free_[first_++];
  // The queue's consumed front is dropped once it is the larger part: constant time on average.
  if (first_ > page_count_) {
    free_.erase(free_.begin(), free_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
  return page;
}

void PagePool::give_back(uint32_t page) {
  CHECK(page < page_count_ && free_count() < page_count_, "page {} is none of {} given out", page,
        page_count_);
  free_.push_back(page);
}

}  // namespace lockstep
