// Copies that a warp's lanes have asked cp.async for and not waited for yet.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tests/emulators/gpu/addresses.h"
#include "tests/emulators/gpu/program.h"
#include "tests/emulators/gpu/shared_touches.h"
#include "tests/emulators/gpu/window.h"

namespace lockstep::ptx {

class AsyncCopies {
 public:
  // Each of these lanes copies so many bytes from `source` to `target`, which lies in `shared`.
  void add(uint32_t lanes, uint32_t bytes, const HostAddresses& target,
           const HostAddresses& source);
  // Each of these lanes makes a group of the copies that it has added since its last call.
  void commit(uint32_t lanes);
  // Copies all groups of these lanes but the last `groups` of each. What a warp copies it writes:
  // if another warp has touched that since the last barrier, returns what it has done ("read").
  const char* wait(uint32_t lanes, uint32_t groups, Window& shared, SharedTouches* touches,
                   uint32_t warp);

 private:
  struct Copy {
    uint32_t lanes = 0;
    uint32_t bytes = 0;
    std::array<uint32_t, kLanes> group;  // how many the lane had committed before
    HostAddresses target;
    HostAddresses source;
  };

  std::vector<Copy> copies_;
  std::array<uint32_t, kLanes> committed_{};
};

}  // namespace lockstep::ptx
