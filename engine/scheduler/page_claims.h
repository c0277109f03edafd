// The pages that several sequences need together: each counts once, however many share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "engine/scheduler/prefix_key.h"

namespace lockstep {

class PageClaims {
 public:
  explicit PageClaims(size_t page_count) : claimed_(page_count, false) {}

  void add(uint32_t page) {
    if (!claimed_[page]) ++count_;
    claimed_[page] = true;
  }
  // A page that is still to be filled.
  void add(const PrefixKey& key) { count_ += keys_.insert(key).second ? 1 : 0; }
  // A page that is still to be filled, for one sequence alone.
  void add_own() { ++count_; }

  size_t count() const { return count_; }

 private:
  std::vector<bool> claimed_;  // by page
  std::set<PrefixKey> keys_;
  size_t count_ = 0;
};

}  // namespace lockstep
