#include "engine/machine/memory_budget.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr uint64_t kMebibyte = 1U << 20U;

Topology two_nodes(uint64_t free_mib, uint64_t pool_pages) {
  Topology topology;
  for (const int id : {0, 2}) {
    Node node;
    node.id = id;
    node.memory_bytes = 4096 * kMebibyte;
    node.free_bytes = free_mib * kMebibyte;
    node.pools = {{2 * kMebibyte, pool_pages, pool_pages}};
    topology.nodes.push_back(node);
  }
  return topology;
}

TEST(MemoryBudget, an_arena_lies_wholly_in_a_pool_or_wholly_elsewhere) {
  MemoryBudget budget(two_nodes(1000, 100), {100'000 * kMebibyte});
  EXPECT_FALSE(budget.take(0, 1100 * kMebibyte))
      << "200 MiB of the pool and 936 others do not add up";
  EXPECT_TRUE(budget.take(0, 200 * kMebibyte));
  EXPECT_EQ(budget.pool_bytes(0), 0U);
  EXPECT_EQ(budget.pool_bytes(2), 200 * kMebibyte);
  EXPECT_TRUE(budget.take(0, 900 * kMebibyte));
  EXPECT_FALSE(budget.take(0, 100 * kMebibyte));
  EXPECT_TRUE(budget.take(2, 900 * kMebibyte));
}

TEST(MemoryBudget, all_nodes_share_the_limit_of_the_process) {
  MemoryBudget budget(two_nodes(3000, 0), {(4000 + 64) * kMebibyte});
  EXPECT_TRUE(budget.take(0, 2500 * kMebibyte));
  EXPECT_EQ(budget.free_bytes(2), 1500 * kMebibyte);
  EXPECT_FALSE(budget.take(2, 2500 * kMebibyte));
  EXPECT_TRUE(budget.take(2, 1500 * kMebibyte));
}

TEST(MemoryBudget, all_nodes_share_the_limit_on_a_pool) {
  MemoryLimits limits{.available_bytes = 100'000 * kMebibyte};
  limits.pools.left_2mib_bytes = 300 * kMebibyte;
  MemoryBudget budget(two_nodes(1000, 100), limits);
  EXPECT_EQ(budget.pool_bytes(-1), 300 * kMebibyte);
  EXPECT_TRUE(budget.take(0, 200 * kMebibyte));
  EXPECT_EQ(budget.pool_bytes(2), 100 * kMebibyte);
  EXPECT_TRUE(budget.take(2, 102 * kMebibyte)) << "of other memory";
  EXPECT_EQ(budget.free_bytes(2), (1000 - 64 - 102) * kMebibyte);
  EXPECT_TRUE(budget.take(2, 100 * kMebibyte));
  EXPECT_EQ(budget.pool_bytes(-1), 0U);
}

TEST(MemoryBudget, pages_of_1_gib_are_counted_whole_and_taken_where_little_is_wasted) {
  Topology topology = two_nodes(1000, 0);
  topology.nodes[0].pools.push_back({1024 * kMebibyte, 8, 8});
  MemoryLimits limits{.available_bytes = 100'000 * kMebibyte};
  limits.pools.left_1gib_bytes = 5000 * kMebibyte;
  MemoryBudget budget(topology, limits);
  EXPECT_EQ(budget.giga_pool_bytes(0), 4096 * kMebibyte);
  EXPECT_EQ(budget.giga_pool_bytes(2), 0U);
  EXPECT_TRUE(budget.take(0, 2040 * kMebibyte));
  EXPECT_EQ(budget.giga_pool_bytes(0), 2048 * kMebibyte);
  EXPECT_FALSE(budget.take(0, 1200 * kMebibyte)) << "nearly half of two pages would be wasted";
}

TEST(MemoryBudget, the_pool_that_an_arena_would_come_from_is_the_one_it_is_taken_from) {
  Topology topology = two_nodes(1000, 700);
  topology.nodes[0].pools.push_back({1024 * kMebibyte, 2, 2});
  EXPECT_EQ(pool_page_bytes(topology, {}, 0, 2040 * kMebibyte), 1024 * kMebibyte);
  EXPECT_EQ(pool_page_bytes(topology, {}, 0, 1200 * kMebibyte), 2 * kMebibyte)
      << "it would waste much";
  EXPECT_EQ(pool_page_bytes(topology, {}, 0, 100 * kMebibyte), 2 * kMebibyte);
  EXPECT_EQ(pool_page_bytes(topology, {}, 0, 2100 * kMebibyte), 0U);
  EXPECT_EQ(pool_page_bytes(topology, {}, 2, 1024 * kMebibyte), 2 * kMebibyte);
  PoolLimits limits;
  limits.left_1gib_bytes = 1024 * kMebibyte;
  limits.left_2mib_bytes = 1000 * kMebibyte;
  EXPECT_EQ(pool_page_bytes(topology, limits, 0, 2040 * kMebibyte), 0U);
  EXPECT_EQ(pool_page_bytes(topology, limits, 0, 1024 * kMebibyte), 1024 * kMebibyte);
}

TEST(MemoryBudget, something_is_left_over_on_every_node) {
  MemoryBudget budget(two_nodes(1000, 0), {100'000 * kMebibyte});
  EXPECT_EQ(budget.free_bytes(0), (1000 - 64) * kMebibyte);
}

TEST(MemoryBudget, a_node_that_is_not_there_or_not_ours_has_no_space) {
  Topology topology = two_nodes(1000, 10);
  topology.nodes[1].memory_allowed = false;
  MemoryBudget budget(topology, {100'000 * kMebibyte});
  EXPECT_FALSE(budget.take(1, kMebibyte));
  EXPECT_FALSE(budget.take(2, kMebibyte));
  EXPECT_TRUE(budget.take(-1, kMebibyte));
}

}  // namespace
}  // namespace lockstep
