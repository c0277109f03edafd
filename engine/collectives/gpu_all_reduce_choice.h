// Which way sums go between GPUs, by their size: the one place for the thresholds.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

enum class GpuSumWay : uint8_t {
  kPeerMemory,            // gpu_all_reduce() in one shot
  kPeerMemoryInTwoShots,  // the same in two
  kNccl,                  // nccl_all_reduce()
};

struct GpuSumQuestion {
  size_t rank_count = 2;
  size_t bytes = 0;          // of one rank's partial, as f32
  bool peer_access = false;  // every rank's GPU reaches every other's memory
  bool nccl = false;         // there are communicators
};

// Asked for every sum: it has the same bits any way (gpu_nccl_sum.h). Without peer access it is
// NCCL, without either there is no way: the caller has refused such GPUs.
GpuSumWay gpu_sum_way(const GpuSumQuestion& question);

}  // namespace lockstep
