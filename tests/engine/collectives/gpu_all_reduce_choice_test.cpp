#include "engine/collectives/gpu_all_reduce_choice.h"

#include <gtest/gtest.h>

#include "engine/collectives/gpu_all_reduce.h"

namespace lockstep {
namespace {

GpuSumWay way(size_t ranks, size_t bytes, bool peer_access = true, bool nccl = true) {
  return gpu_sum_way(
      {.rank_count = ranks, .bytes = bytes, .peer_access = peer_access, .nccl = nccl});
}

TEST(GpuSumWay, small_sums_go_over_peer_memory_and_large_ones_by_nccl) {
  for (size_t ranks = 2; ranks <= kGpuRanksMax; ++ranks) {
    EXPECT_EQ(way(ranks, 16 << 10), GpuSumWay::kPeerMemory) << ranks;
    EXPECT_EQ(way(ranks, 256 << 20), GpuSumWay::kNccl) << ranks;
  }
}

// Two ranks have as many bytes to send in one shot.
TEST(GpuSumWay, takes_two_shots_between_more_than_two_ranks) {
  for (size_t ranks = 3; ranks <= kGpuRanksMax; ++ranks) {
    for (const bool nccl : {false, true}) {
      EXPECT_EQ(way(ranks, 1 << 20, true, nccl), GpuSumWay::kPeerMemoryInTwoShots) << ranks;
    }
  }
  EXPECT_EQ(way(2, 1 << 20), GpuSumWay::kPeerMemory);
}

TEST(GpuSumWay, takes_no_fewer_shots_for_larger_sums_or_more_ranks) {
  const auto shots = [](size_t ranks, size_t bytes) {
    return way(ranks, bytes, true, false) == GpuSumWay::kPeerMemory ? 1 : 2;
  };
  for (size_t bytes = 1024; bytes <= 64 << 20; bytes *= 2) {
    for (size_t ranks = 3; ranks <= kGpuRanksMax; ++ranks) {
      EXPECT_GE(shots(ranks, 2 * bytes), shots(ranks, bytes)) << ranks << ", " << bytes;
      EXPECT_GE(shots(ranks, bytes), shots(ranks - 1, bytes)) << ranks << ", " << bytes;
    }
  }
}

TEST(GpuSumWay, more_ranks_never_keep_larger_sums_from_nccl) {
  for (size_t bytes = 1024; bytes <= 64 << 20; bytes *= 2) {
    bool nccl = false;
    for (size_t ranks = 2; ranks <= kGpuRanksMax; ++ranks) {
      EXPECT_TRUE(!nccl || way(ranks, bytes) == GpuSumWay::kNccl) << ranks << ", " << bytes;
      nccl = way(ranks, bytes) == GpuSumWay::kNccl;
    }
  }
}

TEST(GpuSumWay, is_the_one_that_there_is) {
  for (const size_t bytes : {size_t{1}, size_t{1} << 30}) {
    EXPECT_EQ(way(2, bytes, true, false), GpuSumWay::kPeerMemory);
    EXPECT_NE(way(3, bytes, true, false), GpuSumWay::kNccl);
    EXPECT_EQ(way(2, bytes, false, true), GpuSumWay::kNccl);
    EXPECT_EQ(way(kGpuRanksMax + 1, bytes), GpuSumWay::kNccl);
  }
}

TEST(GpuSumWayDeathTest, refuses_ranks_that_cannot_reach_one_another) {
  EXPECT_DEATH(way(3, 1, false, false), "3 ranks that cannot reach");
}

}  // namespace
}  // namespace lockstep
