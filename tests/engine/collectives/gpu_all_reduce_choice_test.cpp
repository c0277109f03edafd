#include "engine/collectives/gpu_all_reduce_choice.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

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

// Only which sums take one shot, and not between two ranks.
TEST(GpuSumWay, goes_by_what_was_measured) {
  const auto measured = [](size_t ranks, size_t bytes, size_t one_shot_bytes_max) {
    return gpu_sum_way({.rank_count = ranks,
                        .bytes = bytes,
                        .peer_access = true,
                        .nccl = true,
                        .one_shot_bytes_max = one_shot_bytes_max});
  };
  for (size_t ranks = 3; ranks <= kGpuRanksMax; ++ranks) {
    EXPECT_EQ(measured(ranks, 1, 0), GpuSumWay::kPeerMemoryInTwoShots);
    EXPECT_EQ(measured(ranks, 2 << 20, 2 << 20), GpuSumWay::kPeerMemory);
    EXPECT_EQ(measured(ranks, (2 << 20) + 1, 2 << 20), GpuSumWay::kPeerMemoryInTwoShots);
    EXPECT_EQ(measured(ranks, 256 << 20, 512 << 20), GpuSumWay::kNccl);
  }
  EXPECT_EQ(measured(2, 1 << 20, 0), GpuSumWay::kPeerMemory);
}

// The choice for sums of 1, 2, 4 ... bytes, by where one shot is as fast ('1').
size_t one_shot_of(std::string_view as_fast) {
  std::vector<GpuSumTime> times;
  for (const char one : as_fast) {
    const size_t bytes = times.empty() ? 1 : 2 * times.back().bytes;
    times.push_back({.bytes = bytes, .one_shot_ns = 100, .two_shots_ns = one == '1' ? 100U : 99U});
  }
  return one_shot_bytes_max(times);
}

TEST(GpuSumTimes, one_shot_is_taken_as_far_as_it_is_as_fast) {
  EXPECT_EQ(one_shot_of(""), 0U);
  EXPECT_EQ(one_shot_of("0"), 0U);
  EXPECT_EQ(one_shot_of("1"), 1U);
  EXPECT_EQ(one_shot_of("0000"), 0U);
  EXPECT_EQ(one_shot_of("1100"), 2U);
  EXPECT_EQ(one_shot_of("1111"), 8U);
}

// But for one beside the border, where both ways are nearly as fast.
TEST(GpuSumTimes, one_wrong_time_moves_nothing) {
  const std::string right = "111110000";
  for (size_t wrong = 0; wrong < right.size(); ++wrong) {
    if (wrong >= 3 && wrong <= 5) continue;
    std::string times = right;
    times[wrong] = times[wrong] == '1' ? '0' : '1';
    EXPECT_EQ(one_shot_of(times), 16U) << times;
  }
  EXPECT_EQ(one_shot_of("100000001"), 1U);
  EXPECT_EQ(one_shot_of("011111111"), 256U);
}

TEST(GpuSumTimes, of_two_borders_that_fit_as_well_the_lower_is_taken) {
  EXPECT_EQ(one_shot_of("11010"), 2U);
  EXPECT_EQ(one_shot_of("01"), 0U);
}

TEST(GpuSumWayDeathTest, refuses_ranks_that_cannot_reach_one_another) {
  EXPECT_DEATH(way(3, 1, false, false), "3 ranks that cannot reach");
}

}  // namespace
}  // namespace lockstep
