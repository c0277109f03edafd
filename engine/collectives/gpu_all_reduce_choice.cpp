#include "engine/collectives/gpu_all_reduce_choice.h"

#include "engine/base/check.h"
#include "engine/collectives/gpu_all_reduce.h"

namespace lockstep {
namespace {

constexpr size_t kPeerMemoryBytesMax = 8 << 20;

struct Threshold {
  size_t rank_count_max;
  size_t one_shot_bytes_max;
};

// Used if nothing was measured on the machine at hand. Guesses: nothing here has run on several
// GPUs yet. In one shot each rank sends (ranks - 1) times the message, in two 2 * (ranks - 1) /
// ranks times, as in a ring: so between two ranks nothing is lost at any size, and between more the
// less the smaller it is. Published for such sums of up to 4 and 8 ranks over NVLink: one shot
// below 512 and 256 KiB, two up to 8 MiB.
constexpr Threshold kThresholds[] = {
    {2, kPeerMemoryBytesMax},
    {4, 512 << 10},
    {8, 256 << 10},
    {kGpuRanksMax, 64 << 10},
};

size_t guessed_one_shot_bytes_max(size_t rank_count) {
  for (const Threshold& threshold : kThresholds) {
    if (rank_count <= threshold.rank_count_max) return threshold.one_shot_bytes_max;
  }
  return 0;
}

}  // namespace

GpuSumWay gpu_sum_way(const GpuSumQuestion& question) {
  CHECK(question.peer_access || question.nccl, "{} ranks that cannot reach one another",
        question.rank_count);
  const bool possible = question.peer_access && question.rank_count <= kGpuRanksMax;
  if (question.nccl && (!possible || question.bytes > kPeerMemoryBytesMax)) {
    return GpuSumWay::kNccl;
  }
  const size_t one_shot_max =
      question.one_shot_bytes_max.value_or(guessed_one_shot_bytes_max(question.rank_count));
  const bool one_shot = question.rank_count == 2 || question.bytes <= one_shot_max;
  return one_shot ? GpuSumWay::kPeerMemory : GpuSumWay::kPeerMemoryInTwoShots;
}

size_t one_shot_bytes_max(std::span<const GpuSumTime> times) {
  // How many more of them take the slower way than if none took one shot.
  int slower = 0;
  int fewest = 0;
  size_t bytes = 0;
  for (const GpuSumTime& time : times) {
    slower += time.one_shot_ns <= time.two_shots_ns ? -1 : 1;
    if (slower >= fewest) continue;
    fewest = slower;
    bytes = time.bytes;
  }
  return bytes;
}

}  // namespace lockstep
