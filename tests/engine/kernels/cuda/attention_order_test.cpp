// Attention of generated tokens whose blocks come in any order: the last one merges what all leave.
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/kernels/cuda/attended_tokens.h"
#include "tests/engine/kernels/cuda/host_grid.h"

namespace lockstep {
namespace {

class AttentionOrder : public ::testing::Test {
 protected:
  void TearDown() override { HostGrid::set_order(HostGrid::Order::kForward); }
};

// And the counters are left as they were, so that the same launch can be repeated. Each time in
// a cache that does not know the tokens yet: blocks that share a KV head need not wait for the one
// that writes into it.
TEST_F(AttentionOrder, whoever_comes_last_gives_the_same_bits) {
  const std::vector<size_t> contexts = {300, 64, 4'200, 65};
  const std::vector<AttendedPlace> places = {{0, 299}, {1, 63}, {2, 4'199}, {3, 64}};
  const auto attend = [&](const AttendedHeads& heads, unsigned rows, HostGrid::Order order,
                          uint32_t seed = 0) {
    HostGrid::set_order(HostGrid::Order::kForward);
    const GpuCache cache(KvFormat::kF16, 16, 2, contexts, 41);
    HostGrid::set_order(order, seed);
    return attend_unprepared({.cache = cache, .heads = heads, .grid_rows = rows}, places,
                             Preparing::kByAttention, 2);
  };
  for (const AttendedHeads& heads :
       {AttendedHeads{.count = 4, .group = 2}, AttendedHeads{.count = 24, .group = 12}}) {
    for (const unsigned rows : {5U, 100U}) {
      const AttendedOutputs forward = attend(heads, rows, HostGrid::Order::kForward);
      EXPECT_TRUE(forward == attend(heads, rows, HostGrid::Order::kReverse)) << rows << " rows";
      for (uint32_t seed = 1; seed <= 2; ++seed) {
        EXPECT_TRUE(forward == attend(heads, rows, HostGrid::Order::kShuffled, seed))
            << rows << " rows, seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
