// Signal lines on pages of their own, on one node: the threads that look at them again and again
// should find them near.
#pragma once

#include <cstddef>

#include "engine/machine/signal_line.h"

namespace lockstep {

class SignalLines {
 public:
  // `node`: where the pages should lie; -1, or a node that has none left: wherever the kernel likes
  // (a matter of nanoseconds, so no error). Throws std::bad_alloc when there is no memory.
  explicit SignalLines(size_t count, int node = -1);
  ~SignalLines();

  SignalLines(const SignalLines&) = delete;
  SignalLines& operator=(const SignalLines&) = delete;

  size_t size() const { return count_; }
  SignalLine& operator[](size_t index) { return lines_[index]; }

 private:
  size_t count_;
  size_t size_bytes_;
  SignalLine* lines_;
};

}  // namespace lockstep
