#include "engine/collectives/gpu_all_reduce_choice.h"

#include "engine/base/check.h"
#include "engine/collectives/gpu_all_reduce.h"

namespace lockstep {
namespace {

struct Threshold {
  size_t rank_count_max;
  size_t peer_memory_bytes_max;
};

// Guesses, none measured: nothing here has run on several GPUs yet. From everyone to everyone each
// rank sends (ranks - 1) times the message where a ring sends 2 * (ranks - 1) / ranks times, so
// between two ranks nothing is lost at any size, and between more the less the larger it is.
// Published for such sums between 8 ranks over NVLink: up to 256 KiB.
constexpr Threshold kThresholds[] = {
    {2, 8 << 20},
    {4, 512 << 10},
    {8, 256 << 10},
    {kGpuRanksMax, 64 << 10},
};

size_t peer_memory_bytes_max(size_t rank_count) {
  for (const Threshold& threshold : kThresholds) {
    if (rank_count <= threshold.rank_count_max) return threshold.peer_memory_bytes_max;
  }
  return 0;
}

}  // namespace

GpuSumWay gpu_sum_way(const GpuSumQuestion& question) {
  CHECK(question.peer_access || question.nccl, "{} ranks that cannot reach one another",
        question.rank_count);
  const bool possible = question.peer_access && question.rank_count <= kGpuRanksMax;
  if (!possible || !question.nccl) {
    return question.nccl ? GpuSumWay::kNccl : GpuSumWay::kPeerMemory;
  }
  return question.bytes <= peer_memory_bytes_max(question.rank_count) ? GpuSumWay::kPeerMemory
                                                                      : GpuSumWay::kNccl;
}

}  // namespace lockstep
