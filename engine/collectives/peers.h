// Where the other ranks' copies of a buffer lie. The exchange arenas of all ranks of a process have
// one layout: a buffer's copy on another rank is as far from this rank's as the arenas are.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep {

struct Peers {
  size_t rank = 0;                        // this one
  std::vector<std::ptrdiff_t> distances;  // by rank, bytes from this rank's arena to that one's
};

}  // namespace lockstep
