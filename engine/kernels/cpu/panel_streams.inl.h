// How panels are walked as two streams of memory, side by side.
#pragma once

#include <cstddef>

namespace lockstep {
namespace {

// Calls two(panel, apart) for pairs of the panels [begin, end), `apart` from one to the other, and
// one(panel) for the last of an odd number. Each stream goes on from panel to panel without a
// break, and so does what is asked for ahead of it.
template <typename Two, typename One>
[[gnu::always_inline]] inline void each_two_panels(size_t begin, size_t end, Two two, One one) {
  const size_t half = (end - begin) / 2;
  for (size_t panel = begin; panel < begin + half; ++panel) two(panel, half);
  if (begin + 2 * half < end) one(begin + 2 * half);
}

}  // namespace
}  // namespace lockstep
