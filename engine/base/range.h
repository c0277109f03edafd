// A range of indices, and how it is shared.
#pragma once

#include <algorithm>
#include <cstddef>

namespace lockstep {

// Indices begin to end - 1.
struct Range {
  size_t begin = 0;
  size_t end = 0;

  constexpr size_t size() const { return end - begin; }
  constexpr bool empty() const { return begin == end; }
  friend bool operator==(const Range&, const Range&) = default;
};

// The indices that both have; an empty range where there are none.
constexpr Range common_part(Range one, Range other) {
  const size_t begin = std::max(one.begin, other.begin);
  return {begin, std::max(begin, std::min(one.end, other.end))};
}

// The share of one of `count` takers, contiguous and even.
constexpr Range share(Range total, size_t taker, size_t count) {
  return {total.begin + total.size() * taker / count,
          total.begin + total.size() * (taker + 1) / count};
}

}  // namespace lockstep
