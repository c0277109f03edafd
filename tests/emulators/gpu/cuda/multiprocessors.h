// The places that blocks take on an emulated GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::ptx {

// As of compute capability 9.0 (CUDA Programming Guide, "Technical Specifications per Compute
// Capability"), with fewer multiprocessors, and no registers to be counted: instead fewer blocks.
constexpr uint32_t kMultiprocessors = 4;
constexpr uint32_t kBlocksOfEach = 16;
constexpr uint32_t kThreadsOfEach = 2048;
constexpr uint32_t kSharedBytesOfEach = 228U << 10U;
constexpr uint32_t kSharedBytesReserved = 1U << 10U;  // of each block, for the system
// A block's limits.
constexpr uint32_t kThreadsMax = 1024;
constexpr uint32_t kSharedBytesMax = 227U << 10U;  // after asking for it
constexpr uint32_t kSharedBytesWithoutAsking = 48U << 10U;

class Multiprocessors {
 public:
  // Takes space for a block; which of them has it, or -1: none.
  int take(uint32_t threads, uint32_t shared_bytes) {
    for (size_t index = 0; index < each_.size(); ++index) {
      Used& used = each_[index];
      if (used.blocks + 1 > kBlocksOfEach || used.threads + threads > kThreadsOfEach ||
          used.shared_bytes + shared_bytes + kSharedBytesReserved > kSharedBytesOfEach) {
        continue;
      }
      used.blocks += 1;
      used.threads += threads;
      used.shared_bytes += shared_bytes + kSharedBytesReserved;
      return static_cast<int>(index);
    }
    return -1;
  }

  void give_back(int index, uint32_t threads, uint32_t shared_bytes) {
    Used& used = each_[static_cast<size_t>(index)];
    used.blocks -= 1;
    used.threads -= threads;
    used.shared_bytes -= shared_bytes + kSharedBytesReserved;
  }

 private:
  struct Used {
    uint32_t blocks = 0;
    uint32_t threads = 0;
    uint32_t shared_bytes = 0;
  };
  std::vector<Used> each_ = std::vector<Used>(kMultiprocessors);
};

}  // namespace lockstep::ptx
