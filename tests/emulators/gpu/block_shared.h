// A block's state that its warps share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/emulators/gpu/block.h"
#include "tests/emulators/gpu/memory.h"
#include "tests/emulators/gpu/program.h"
#include "tests/emulators/gpu/shared_touches.h"
#include "tests/emulators/gpu/window.h"

namespace lockstep::ptx {

struct BlockShared {
  BlockShared(const Launch& its_launch, Size3 its_index, Memory& its_memory, uint64_t seed)
      : launch(its_launch),
        program(its_launch.kernel->program()),
        index(its_index),
        memory(its_memory),
        shared(program.shared_bytes + its_launch.dynamic_shared_bytes, seed),
        local(size_t{program.local_bytes} * its_launch.block.x * its_launch.block.y *
                  its_launch.block.z,
              seed) {
    if (launch.refuses_shared_races) touches = SharedTouches::take(shared.size());
  }

  // The allocation that holds all bytes from `first` to `last`; empty: none does.
  MemoryRange range_of(uint64_t first, uint64_t last) {
    for (const MemoryRange& range : ranges) {
      if (first >= range.begin && last < range.end) return range;
    }
    return find_range(first, last);
  }

  const Launch& launch;
  const Program& program;
  Size3 index;
  Memory& memory;
  bool launch_before_is_done = false;
  bool lets_next_begin = false;
  std::string failure;  // empty: none
  Fault fault = Fault::kOther;
  Window shared;
  SharedTouches::Pointer touches;  // of shared memory, where races are refused; or none
  Window local;                    // a thread's bytes, then the next one's

 private:
  MemoryRange find_range(uint64_t first, uint64_t last);

  // Those found lately. Never empty ranges but at the beginning.
  std::array<MemoryRange, 8> ranges{};
  size_t next_range = 0;
};

}  // namespace lockstep::ptx
