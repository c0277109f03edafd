#include "engine/machine/memory_room.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr uint64_t kMiB = 1U << 20U;

Topology two_nodes(uint64_t free_mib, uint64_t pool_pages) {
  Topology topology;
  for (const int id : {0, 2}) {
    Node node;
    node.id = id;
    node.memory_bytes = 4096 * kMiB;
    node.free_bytes = free_mib * kMiB;
    node.pools = {{2 * kMiB, pool_pages, pool_pages}};
    topology.nodes.push_back(node);
  }
  return topology;
}

TEST(MemoryRoom, an_arena_lies_wholly_in_a_pool_or_wholly_elsewhere) {
  MemoryRoom room(two_nodes(1000, 100), 100'000 * kMiB);
  EXPECT_FALSE(room.take(0, 1100 * kMiB)) << "200 MiB of the pool and 936 others do not add up";
  EXPECT_TRUE(room.take(0, 200 * kMiB));
  EXPECT_EQ(room.pool_bytes(0), 0U);
  EXPECT_EQ(room.pool_bytes(2), 200 * kMiB);
  EXPECT_TRUE(room.take(0, 900 * kMiB));
  EXPECT_FALSE(room.take(0, 100 * kMiB));
  EXPECT_TRUE(room.take(2, 900 * kMiB));
}

TEST(MemoryRoom, all_nodes_share_the_limit_of_the_process) {
  MemoryRoom room(two_nodes(3000, 0), (4000 + 64) * kMiB);
  EXPECT_TRUE(room.take(0, 2500 * kMiB));
  EXPECT_EQ(room.free_bytes(2), 1500 * kMiB);
  EXPECT_FALSE(room.take(2, 2500 * kMiB));
  EXPECT_TRUE(room.take(2, 1500 * kMiB));
}

TEST(MemoryRoom, something_is_left_over_on_every_node) {
  MemoryRoom room(two_nodes(1000, 0), 100'000 * kMiB);
  EXPECT_EQ(room.free_bytes(0), (1000 - 64) * kMiB);
}

TEST(MemoryRoom, a_node_that_is_not_there_or_not_ours_has_no_room) {
  Topology topology = two_nodes(1000, 10);
  topology.nodes[1].memory_allowed = false;
  MemoryRoom room(topology, 100'000 * kMiB);
  EXPECT_FALSE(room.take(1, kMiB));
  EXPECT_FALSE(room.take(2, kMiB));
  EXPECT_TRUE(room.take(-1, kMiB));
}

}  // namespace
}  // namespace lockstep
