// NodeMemory in a real pool of huge pages.
#include "tests/engine/machine/huge_page_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <span>

#include "engine/machine/node_memory.h"
#include "engine/machine/page_placement.h"
#include "engine/machine/topology.h"

namespace lockstep {
namespace {

constexpr size_t kMiB = 1U << 20U;

std::span<const std::byte> all_of(const NodeMemory& memory) {
  return {memory.data(), memory.size_bytes()};
}

// As root on a machine that allows it, with a pool of pages of 2 MiB on the first node.
class NodeMemoryOfPool : public ::testing::Test {
 protected:
  static constexpr uint64_t kPages = 40;

  void SetUp() override {
    const Topology topology = read_topology();
    const auto node = std::ranges::find_if(topology.nodes, &Node::has_usable_memory);
    ASSERT_NE(node, topology.nodes.end());
    node_ = node->id;
    if (!pool_.reserve(node_, kPages)) GTEST_SKIP() << "no huge-page pool can be had here";
  }

  static Result<NodeMemory> take(int node, size_t bytes, bool shared) {
    return NodeMemory::allocate(
        {.bytes = bytes, .what = "weights", .node = node, .shared = shared});
  }

  int node_ = -1;
  HugePagePool2MiB pool_;
};

TEST_F(NodeMemoryOfPool, a_pool_that_is_large_enough_is_used) {
  for (const bool shared : {false, true}) {
    const uint64_t before = pool_.free_pages();
    {
      const auto memory = take(node_, 31 * kMiB, shared);
      ASSERT_TRUE(memory.has_value()) << memory.error().message;
      EXPECT_EQ(memory->page_kind(), PageKind::kHuge2MiB);
      EXPECT_EQ(memory->size_bytes(), 32 * kMiB);
      EXPECT_EQ(memory->descriptor() >= 0, shared);
      EXPECT_EQ(read_page_sizes(all_of(*memory))->huge_bytes, 32 * kMiB);
      EXPECT_EQ(pool_.free_pages(), before - 16);
      EXPECT_TRUE(std::ranges::all_of(all_of(*memory),
                                      [](std::byte byte) { return byte == std::byte{0}; }));
      const auto placement = examine_placement(all_of(*memory), node_);
      if (placement) {
        EXPECT_EQ(placement->bytes_on_node.at(node_), 32 * kMiB);
        EXPECT_EQ(placement->wrong_bytes, 0U);
      }
    }
    EXPECT_EQ(pool_.free_pages(), before);
  }
}

TEST_F(NodeMemoryOfPool, a_pool_of_half_the_size_is_left_alone) {
  const uint64_t before = pool_.free_pages();
  // Twice the pool is taken in other pages.
  if (before > 4 * kPages) GTEST_SKIP() << "this machine's pool of " << before << " is too large";
  const auto memory = take(node_, 2 * before * 2 * kMiB, false);
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  EXPECT_NE(memory->page_kind(), PageKind::kHuge2MiB);
  EXPECT_EQ(pool_.free_pages(), before);
}

TEST_F(NodeMemoryOfPool, a_process_that_is_killed_leaves_no_page_behind) {
  const uint64_t before = pool_.free_pages();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto own = take(node_, 20 * kMiB, false);
    const auto shared = take(node_, 20 * kMiB, true);
    const char ok = own && shared && own->page_kind() == PageKind::kHuge2MiB &&
                            shared->page_kind() == PageKind::kHuge2MiB
                        ? 'y'
                        : 'n';
    if (write(ready[1], &ok, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char ok = 'n';
  ASSERT_EQ(read(ready[0], &ok, 1), 1);
  EXPECT_EQ(ok, 'y');
  EXPECT_EQ(pool_.free_pages(), before - 20);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(pool_.free_pages(), before);
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace lockstep
