// From where to where a draft's registers are needed.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/emulators/gpu/draft.h"

namespace lockstep::ptx {

// In half steps: instruction i reads at 2i and writes at 2i+1, or writes at 2i too if a register
// that it writes must be none of those it reads.
struct Interval {
  uint32_t first = 0xffffffff;
  uint32_t last = 0;

  bool is_empty() const { return first > last; }
  void cover(uint32_t at) {
    first = at < first ? at : first;
    last = at > last ? at : last;
  }
};

struct Liveness {
  // One for each register: between its ends lie all places where its value may still be read.
  std::vector<Interval> intervals;
  // Registers that may be read before anything was written to them.
  std::vector<uint32_t> read_first;
};
Liveness find_liveness(const Draft& draft);

}  // namespace lockstep::ptx
