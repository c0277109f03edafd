// Which way sums go between GPUs, by their size: the one place for the thresholds. Those of one
// shot and two may be measured on the machine at hand (gpu_trials.h); whether NCCL is used at
// all is asked before anything is, and never depends on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

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
  // Sums of more bytes take two shots, as measured: the same for all ranks. None: a table has it.
  std::optional<size_t> one_shot_bytes_max = {};
};

// Asked for every sum: it has the same bits any way (gpu_nccl_sum.h). Without peer access it is
// NCCL, without either there is no way: the caller has refused such GPUs.
GpuSumWay gpu_sum_way(const GpuSumQuestion& question);

// The measured times of a sum of `bytes` in one shot and in two.
struct GpuSumTime {
  size_t bytes = 0;
  uint64_t one_shot_ns = 0;
  uint64_t two_shots_ns = 0;
};

// The size up to which one shot is as fast, of those that were measured (`times`, ascending); 0: of
// none. With it as few of them as possible take the slower way, the least such size; so one that
// was measured wrongly counts no more than any other.
size_t one_shot_bytes_max(std::span<const GpuSumTime> times);

}  // namespace lockstep
