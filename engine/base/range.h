#pragma once

#include <cstddef>

namespace lockstep {

// Indices begin to end - 1.
struct Range {
  size_t begin = 0;
  size_t end = 0;

  size_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  friend bool operator==(const Range&, const Range&) = default;
};

}  // namespace lockstep
