// The other ranks' copies of a buffer. The exchange arenas of all ranks of a process have
// one layout: a buffer's copy on another rank is as far from this rank's as the arenas are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

struct Peers {
  size_t rank = 0;                        // this one
  std::vector<std::ptrdiff_t> distances;  // by rank, bytes from this rank's arena to that one's
};

// The object `distance` bytes from `own`, in another arena.
template <typename T>
T* at_distance(T* own, std::ptrdiff_t distance) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(own) + static_cast<uintptr_t>(distance));
}

}  // namespace lockstep
