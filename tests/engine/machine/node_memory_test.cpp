#include "engine/machine/node_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/machine/page_placement.h"
#include "engine/machine/rank_places.h"
#include "engine/machine/topology.h"
#include "engine/machine/workers.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMiB = 1U << 20U;

std::span<const std::byte> all_of(const NodeMemory& memory) {
  return {memory.data(), memory.size_bytes()};
}

bool is_zero(const NodeMemory& memory) {
  return std::ranges::all_of(all_of(memory), [](std::byte byte) { return byte == std::byte{0}; });
}

// Whether the kernel could read the byte, without dying of it.
bool is_readable(const std::byte* address) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const bool readable = write(ends[1], address, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

// Workers on a node's own processors; on those of others where it has none.
std::unique_ptr<Workers> workers_on(const Topology& topology, int node) {
  std::vector<int> cpus;
  for (const Cpu& cpu : topology.cpus) {
    if (cpu.node == node) cpus.push_back(cpu.id);
  }
  if (cpus.empty()) cpus.assign(2, -1);
  auto workers = Workers::start(cpus);
  EXPECT_TRUE(workers.has_value());
  return std::move(*workers);
}

TEST(NodeMemory, is_zeroed_aligned_and_moves_its_ownership) {
  auto memory = NodeMemory::allocate({.bytes = 5'000'000, .what = "a test"});
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  EXPECT_GE(memory->size_bytes(), 5'000'000U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % (2 * kMiB), 0U);
  EXPECT_TRUE(is_zero(*memory));
  memory->data()[4'999'999] = std::byte{7};
  NodeMemory other = std::move(*memory);
  EXPECT_EQ(memory->data(), nullptr);
  EXPECT_EQ(other.data()[4'999'999], std::byte{7});
}

TEST(NodeMemory, nothing_is_an_arena_without_memory) {
  const auto memory = NodeMemory::allocate({.bytes = 0, .what = "nothing"});
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->size_bytes(), 0U);
}

TEST(NodeMemory, more_than_there_is_gets_refused_with_the_numbers) {
  for (const size_t bytes : {size_t{1} << 50U, SIZE_MAX, SIZE_MAX / 2}) {
    const auto memory = NodeMemory::allocate({.bytes = bytes, .what = "the weights"});
    ASSERT_FALSE(memory.has_value());
    EXPECT_EQ(memory.error().kind, ErrorKind::kMachineRefused);
    EXPECT_THAT(memory.error().message, HasSubstr(std::to_string(bytes >> 20U) + " MiB"));
    EXPECT_THAT(memory.error().message, HasSubstr("the weights"));
    EXPECT_THAT(memory.error().message, HasSubstr("--context"));
  }
}

TEST(NodeMemory, any_number_of_workers_touches_every_page) {
  // More than one slice, and an end within one.
  for (const size_t count : {1U, 2U, 5U}) {
    auto workers = Workers::start(std::vector<int>(count, -1));
    ASSERT_TRUE(workers.has_value());
    const auto memory =
        NodeMemory::allocate({.bytes = 130 * kMiB, .what = "a test", .workers = workers->get()});
    ASSERT_TRUE(memory.has_value()) << memory.error().message;
    const auto placement = examine_placement(all_of(*memory), -1);
    if (placement) {
      EXPECT_EQ(placement->absent_bytes, 0U);
    }
    EXPECT_EQ(memory->data()[130 * kMiB - 1], std::byte{0});
  }
}

TEST(NodeMemory, every_node_gives_memory_of_its_own_and_nodes_without_memory_say_so) {
  const Topology topology = read_topology();
  for (const Node& node : topology.nodes) {
    const auto workers = workers_on(topology, node.id);
    for (const bool shared : {false, true}) {
      const auto memory = NodeMemory::allocate({.bytes = 70 * kMiB,
                                                .what = "weights",
                                                .node = node.id,
                                                .shared = shared,
                                                .workers = workers.get()});
      if (!node.has_usable_memory()) {
        ASSERT_FALSE(memory.has_value()) << node.id;
        EXPECT_EQ(memory.error().kind, ErrorKind::kMachineRefused);
        EXPECT_THAT(memory.error().message, HasSubstr("node " + std::to_string(node.id)));
        continue;
      }
      ASSERT_TRUE(memory.has_value()) << memory.error().message;
      EXPECT_EQ(memory->node(), node.id);
      EXPECT_TRUE(is_zero(*memory));
      const auto placement = examine_placement(all_of(*memory), node.id);
      if (!placement) GTEST_SKIP() << placement.error().message;
      EXPECT_EQ(placement->wrong_bytes, 0U) << "node " << node.id;
      EXPECT_EQ(placement->absent_bytes, 0U) << "node " << node.id;
      EXPECT_EQ(placement->bytes_on_node.at(node.id), memory->size_bytes());
    }
  }
}

TEST(NodeMemory, bound_memory_lies_on_its_node_whoever_touches_it) {
  const Topology topology = read_topology();
  for (const Node& from : topology.nodes) {
    const auto workers = workers_on(topology, from.id);
    for (const Node& to : topology.nodes) {
      if (!to.has_usable_memory()) continue;
      const auto memory = NodeMemory::allocate(
          {.bytes = 6 * kMiB, .what = "weights", .node = to.id, .workers = workers.get()});
      ASSERT_TRUE(memory.has_value()) << memory.error().message;
      if (!memory->is_bound()) GTEST_SKIP() << "this process may not bind memory";
      const auto placement = examine_placement(all_of(*memory), to.id);
      if (!placement) GTEST_SKIP() << placement.error().message;
      EXPECT_EQ(placement->wrong_bytes, 0U) << from.id << " touches " << to.id;
      if (from.id == to.id) continue;
      // The same memory, were it meant for the node that touched it.
      EXPECT_EQ(examine_placement(all_of(*memory), from.id)->wrong_bytes, memory->size_bytes());
    }
  }
}

TEST(NodeMemory, every_rank_of_this_machine_gets_memory_of_its_node) {
  const Topology topology = read_topology();
  for (const size_t rank_count : {0U, 1U, 3U}) {
    RankRequest request;
    request.rank_count = rank_count;
    const auto places = place_ranks(topology, request);
    ASSERT_TRUE(places.has_value()) << places.error().message;
    for (const RankPlace& place : *places) {
      auto workers = Workers::start(place.cpus);
      ASSERT_TRUE(workers.has_value()) << workers.error().message;
      const auto memory = NodeMemory::allocate({.bytes = 20 * kMiB,
                                                .what = "weights",
                                                .node = place.node,
                                                .shared = true,
                                                .workers = workers->get()});
      ASSERT_TRUE(memory.has_value()) << memory.error().message;
      const auto placement = examine_placement(all_of(*memory), place.node);
      if (!placement) GTEST_SKIP() << placement.error().message;
      EXPECT_EQ(placement->wrong_bytes, 0U) << "rank on node " << place.node;
      EXPECT_EQ(placement->absent_bytes, 0U) << "rank on node " << place.node;
    }
  }
}

// From here on mbind and move_pages are refused to the calling thread and its children, as
// containers do.
bool forbid_memory_calls() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mbind, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_move_pages, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{.len = std::size(filter), .filter = filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(NodeMemory, where_a_filter_refuses_mbind_memory_lies_where_the_ranks_workers_run) {
  const auto places = place_ranks(read_topology(), {});
  ASSERT_TRUE(places.has_value()) << places.error().message;
  for (const RankPlace& place : *places) {
    bool filtered = false;
    Result<NodeMemory> memory = NodeMemory();
    bool absent = true;
    // A thread of its own, since the filter cannot be taken off again; its workers inherit it.
    std::thread container([&] {
      filtered = forbid_memory_calls();
      if (!filtered) return;
      auto workers = Workers::start(place.cpus);
      if (!workers) return;
      memory = NodeMemory::allocate(
          {.bytes = 70 * kMiB, .what = "weights", .node = place.node, .workers = workers->get()});
      if (!memory) return;
      // The placement of a whole mapping can be known even here.
      const auto placement = examine_placement(all_of(*memory), place.node);
      absent = placement && placement->absent_bytes > 0;
    });
    container.join();
    if (!filtered) GTEST_SKIP() << "this process may not set a seccomp filter";
    ASSERT_TRUE(memory.has_value()) << memory.error().message;
    ASSERT_GE(memory->size_bytes(), 70 * kMiB);
    EXPECT_FALSE(memory->is_bound());
    EXPECT_FALSE(absent);
    const auto placement = examine_placement(all_of(*memory), place.node);
    if (!placement) GTEST_SKIP() << placement.error().message;
    EXPECT_EQ(placement->absent_bytes, 0U);
    // Workers that are pinned to the node touch its own memory.
    const Topology topology = read_topology();
    const bool at_home = std::ranges::all_of(place.cpus, [&](int id) {
      const auto cpu = std::ranges::find(topology.cpus, id, &Cpu::id);
      return cpu != topology.cpus.end() && cpu->node == place.node;
    });
    if (at_home) {
      EXPECT_EQ(placement->wrong_bytes, 0U) << "rank on node " << place.node;
    }
  }
}

TEST(NodeMemory, more_than_a_node_has_is_refused_though_others_have_more) {
  const Topology topology = read_topology();
  const auto has_memory = &Node::has_usable_memory;
  const auto node = std::ranges::find_if(topology.nodes, has_memory);
  ASSERT_NE(node, topology.nodes.end());
  const size_t bytes = node->memory_bytes - 16 * kMiB;
  const auto memory = NodeMemory::allocate({.bytes = bytes, .what = "weights", .node = node->id});
  ASSERT_FALSE(memory.has_value());
  EXPECT_THAT(memory.error().message, HasSubstr("not enough is available"));
}

TEST(NodeMemory, what_lies_before_and_after_cannot_be_touched) {
  const auto memory = NodeMemory::allocate({.bytes = 3 * kMiB, .what = "a test"});
  ASSERT_TRUE(memory.has_value());
  if (memory->page_kind() == PageKind::kHuge2MiB) GTEST_SKIP() << "this machine has a pool";
  EXPECT_TRUE(is_readable(memory->data()));
  EXPECT_TRUE(is_readable(memory->data() + memory->size_bytes() - 1));
  EXPECT_FALSE(is_readable(memory->data() - 1));
  EXPECT_FALSE(is_readable(memory->data() + memory->size_bytes()));
}

TEST(NodeMemory, the_page_kind_is_what_the_kernel_says) {
  const auto memory = NodeMemory::allocate({.bytes = 40 * kMiB, .what = "a test"});
  ASSERT_TRUE(memory.has_value());
  const auto sizes = read_page_sizes(all_of(*memory));
  ASSERT_TRUE(sizes.has_value());
  EXPECT_LE(sizes->huge_bytes, sizes->resident_bytes);
  if (memory->page_kind() == PageKind::kSmall) {
    EXPECT_LT(sizes->huge_bytes, memory->size_bytes() / 2);
  } else {
    EXPECT_GE(sizes->huge_bytes, sizes->resident_bytes / 2);
  }
}

TEST(NodeMemory, what_is_given_back_is_gone) {
  const std::byte* data = nullptr;
  {
    const auto memory = NodeMemory::allocate({.bytes = 2 * kMiB, .what = "a test"});
    ASSERT_TRUE(memory.has_value());
    data = memory->data();
  }
  EXPECT_FALSE(is_readable(data));
}

class Placements : public ::testing::Test {
 protected:
  Placements() {
    // 32 pages of which 5 are touched.
    data_ = static_cast<std::byte*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (const size_t page : {0U, 3U, 4U, 17U, 31U}) data_[page * 4096] = std::byte{1};
  }
  ~Placements() override { munmap(data_, kBytes); }

  static constexpr size_t kBytes = 32U * 4096U;
  std::byte* data_ = nullptr;
};

TEST_F(Placements, pages_are_counted_on_their_node_and_untouched_ones_are_absent) {
  const auto placement = examine_placement({data_, kBytes}, -1);
  if (!placement) GTEST_SKIP() << placement.error().message;
  uint64_t present = 0;
  for (const auto& [node, bytes] : placement->bytes_on_node) present += bytes;
  EXPECT_EQ(present, 5U * 4096);
  EXPECT_EQ(placement->absent_bytes, 27U * 4096);
  EXPECT_EQ(placement->wrong_bytes, 0U);
}

TEST_F(Placements, pages_on_another_node_than_they_should_be_are_wrong) {
  const auto placement = examine_placement({data_, kBytes}, 1023);
  if (!placement) GTEST_SKIP() << placement.error().message;
  EXPECT_EQ(placement->wrong_bytes, 5U * 4096);
}

TEST_F(Placements, parts_of_pages_count_by_their_bytes) {
  const auto placement = examine_placement({data_ + 4096 - 10, 30}, -1);
  if (!placement) GTEST_SKIP() << placement.error().message;
  EXPECT_EQ(placement->absent_bytes, 20U);
  ASSERT_EQ(placement->bytes_on_node.size(), 1U);
  EXPECT_EQ(placement->bytes_on_node.begin()->second, 10U);
}

}  // namespace
}  // namespace lockstep
