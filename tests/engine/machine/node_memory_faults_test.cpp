// NodeMemory where the kernel or a container refuses it something.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "engine/base/log.h"
#include "engine/machine/memory_budget.h"
#include "engine/machine/node_memory.h"
#include "engine/machine/page_placement.h"
#include "engine/machine/workers.h"
#include "tests/engine/machine/refusing_calls.h"
#include "tests/engine/machine/sysfs_tree.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMebibyte = 1U << 20U;

class NodeMemoryFaults : public ::testing::Test {
 protected:
  // Two nodes; node 0 has 256 free pages of 2 MiB in its pool, node 1 has 128. Transparent huge
  // pages for all memory that asks for them.
  NodeMemoryFaults() {
    // Each fallback says a word, here a hundred of them.
    spdlog::set_level(spdlog::level::err);
    tree_.write(two_socket_machine());
    tree_.write("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 6000000 kB");
    tree_.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
    set_shared_huge_pages("always within_size [advise] never deny force");
  }

  ~NodeMemoryFaults() override { spdlog::set_level(level_); }

  void set_shared_huge_pages(const std::string& choice) {
    tree_.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", choice);
  }

  // Makes nothing lie in the pool.
  void empty_pools() {
    for (const char* const node : {"node0", "node1"}) {
      tree_.write(std::string("sys/devices/system/node/") + node +
                      "/hugepages/hugepages-2048kB/free_hugepages",
                  "0");
    }
  }

  Result<NodeMemory> take(RefusingCalls& calls, bool shared, size_t bytes = 5 * kMebibyte) const {
    return NodeMemory::allocate(
        {.bytes = bytes, .what = "weights", .node = 1, .shared = shared, .calls = &calls});
  }

  spdlog::level::level_enum level_ = spdlog::get_level();
  SysfsTree tree_{"node-memory"};
};

void expect_usable(const NodeMemory& memory, size_t bytes) {
  ASSERT_GE(memory.size_bytes(), bytes);
  EXPECT_EQ(memory.data()[0], std::byte{0});
  memory.data()[bytes - 1] = std::byte{1};
  EXPECT_EQ(memory.data()[bytes - 1], std::byte{1});
}

TEST_F(NodeMemoryFaults, without_any_the_pool_is_used_and_the_node_asked_for_is_bound) {
  for (const bool shared : {false, true}) {
    RefusingCalls calls(tree_.root());
    const auto memory = take(calls, shared);
    ASSERT_TRUE(memory.has_value()) << memory.error().message;
    expect_usable(*memory, 5 * kMebibyte);
    EXPECT_EQ(memory->page_kind(), PageKind::kHuge2MiB);
    EXPECT_EQ(memory->descriptor() >= 0, shared);
    EXPECT_TRUE(memory->is_bound());
    EXPECT_EQ(calls.bound_to(), std::vector<int>{1});
  }
}

TEST_F(NodeMemoryFaults, any_call_that_is_refused_leads_to_other_pages_or_a_clean_error) {
  const std::vector<std::pair<std::string, std::vector<int>>> refusals = {
      {"map", {ENOMEM}},
      {"protect", {ENOMEM}},
      {"bind", {EPERM, ENOSYS, EINVAL, ENOMEM}},
      {"populate", {ENOMEM, EFAULT, EINTR}},
      {"make_memfd", {ENOSYS, EPERM, EMFILE, EINVAL}},
      {"resize", {ENOMEM, EINVAL}}};
  size_t errors = 0;
  for (const auto& [call, numbers] : refusals) {
    for (const int number : numbers) {
      for (int variant = 0; variant < 24; ++variant) {
        const bool shared = variant % 2 != 0;
        const bool for_good = variant / 2 % 2 != 0;
        const int first = variant / 4;
        RefusingCalls calls(tree_.root());
        calls.refuse({call, number, first, for_good});
        {
          const auto memory = take(calls, shared);
          if (memory) {
            expect_usable(*memory, 5 * kMebibyte);
          } else {
            ++errors;
            EXPECT_EQ(memory.error().kind, ErrorKind::kMachineRefused);
            EXPECT_THAT(memory.error().message, HasSubstr("weights"));
            EXPECT_THAT(memory.error().message, HasSubstr("node 1"));
            EXPECT_EQ(calls.open_count(), 0U) << call << ' ' << number << ' ' << variant;
          }
        }
        EXPECT_EQ(calls.open_count(), 0U) << call << ' ' << number << ' ' << variant;
      }
    }
  }
  EXPECT_GT(errors, 0U);
}

TEST_F(NodeMemoryFaults, a_pool_that_fails_at_populate_time_falls_back_to_transparent_pages) {
  for (const bool shared : {false, true}) {
    RefusingCalls calls(tree_.root());
    calls.refuse({"populate", EFAULT, 0, false});
    const auto memory = take(calls, shared);
    ASSERT_TRUE(memory.has_value()) << memory.error().message;
    EXPECT_NE(memory->page_kind(), PageKind::kHuge2MiB);
    expect_usable(*memory, 5 * kMebibyte);
  }
}

TEST_F(NodeMemoryFaults, a_pool_that_fails_in_the_middle_falls_back_as_well) {
  // Three slices of which the third fails, with several workers.
  auto workers = Workers::start(std::vector<int>{-1, -1});
  ASSERT_TRUE(workers.has_value());
  RefusingCalls calls(tree_.root());
  calls.refuse({"populate", EFAULT, 2, false});
  const auto memory = NodeMemory::allocate({.bytes = 150 * kMebibyte,
                                            .what = "weights",
                                            .node = 1,
                                            .workers = workers->get(),
                                            .calls = &calls});
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  EXPECT_NE(memory->page_kind(), PageKind::kHuge2MiB);
  expect_usable(*memory, 150 * kMebibyte);
}

TEST_F(NodeMemoryFaults, pages_of_1_gib_are_used_where_they_waste_little) {
  tree_.write("sys/devices/system/node/node1/hugepages/hugepages-1048576kB/free_hugepages", "2");
  // Nothing is populated: the first mapping that is tried shows what was chosen.
  const auto first_choice = [&](size_t bytes) {
    RefusingCalls asked(tree_.root());
    asked.refuse({"bind", EINVAL, 0, true});
    const auto memory = take(asked, false, bytes);
    EXPECT_FALSE(memory.has_value());
    return asked.largest_map_bytes();
  };
  EXPECT_EQ(first_choice(1024 * kMebibyte), 1024 * kMebibyte);
  EXPECT_EQ(first_choice(2000 * kMebibyte), 2048 * kMebibyte);
  EXPECT_LT(first_choice(1100 * kMebibyte), 1110 * kMebibyte);  // would waste 948 MiB
  EXPECT_LT(first_choice(1000 * kMebibyte), 1010 * kMebibyte);  // smaller than one page
  EXPECT_LT(first_choice(3000 * kMebibyte), 3010 * kMebibyte);  // the pool has two
}

TEST_F(NodeMemoryFaults, kernels_that_cannot_populate_leave_the_pool_alone_and_touch) {
  RefusingCalls calls(tree_.root());
  calls.has_populate = false;
  calls.refuse({"populate", EINVAL, 0, true});
  const auto memory = take(calls, false);
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  EXPECT_NE(memory->page_kind(), PageKind::kHuge2MiB);
  const auto placement = examine_placement({memory->data(), memory->size_bytes()}, -1);
  if (placement) {
    EXPECT_EQ(placement->absent_bytes, 0U);
  }
}

TEST_F(NodeMemoryFaults, where_binding_is_refused_memory_is_had_all_the_same) {
  for (const int error : {EPERM, ENOSYS}) {
    RefusingCalls calls(tree_.root());
    calls.refuse({"bind", error, 0, true});
    const auto memory = take(calls, true);
    ASSERT_TRUE(memory.has_value()) << memory.error().message;
    EXPECT_FALSE(memory->is_bound());
    EXPECT_EQ(memory->node(), 1);
    expect_usable(*memory, 5 * kMebibyte);
  }
}

TEST_F(NodeMemoryFaults, a_node_whose_memory_may_not_be_used_is_named_with_the_remedy) {
  RefusingCalls calls(tree_.root());
  calls.refuse({"bind", EINVAL, 0, true});
  const auto memory = take(calls, false);
  ASSERT_FALSE(memory.has_value());
  EXPECT_THAT(memory.error().message, HasSubstr("node 1"));
  EXPECT_THAT(memory.error().message, HasSubstr("cpuset.mems"));
}

TEST_F(NodeMemoryFaults, without_memfds_huge_pages_of_anonymous_memory_are_taken) {
  RefusingCalls calls(tree_.root());
  calls.refuse({"make_memfd", ENOSYS, 0, true});
  const auto memory = take(calls, true);
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  EXPECT_EQ(memory->page_kind(), PageKind::kHuge2MiB);
  EXPECT_EQ(memory->descriptor(), -1);
}

TEST_F(NodeMemoryFaults, where_memfds_get_no_huge_pages_anonymous_memory_is_taken) {
  empty_pools();
  {
    RefusingCalls calls(tree_.root());
    const auto memory = take(calls, true);
    ASSERT_TRUE(memory.has_value()) << memory.error().message;
    EXPECT_GE(memory->descriptor(), 0);
    EXPECT_NE(fcntl(memory->descriptor(), F_GETFD) & FD_CLOEXEC, 0);
  }
  set_shared_huge_pages("always within_size advise [never] deny force");
  RefusingCalls calls(tree_.root());
  const auto memory = take(calls, true);
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  EXPECT_EQ(memory->descriptor(), -1);
}

TEST_F(NodeMemoryFaults, where_nothing_gets_huge_pages_a_memfd_is_taken) {
  empty_pools();
  set_shared_huge_pages("always within_size advise [never] deny force");
  tree_.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
  RefusingCalls calls(tree_.root());
  const auto memory = take(calls, true);
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  EXPECT_GE(memory->descriptor(), 0);
  EXPECT_EQ(memory->page_kind(), PageKind::kSmall);
}

TEST_F(NodeMemoryFaults, another_mapping_of_the_memfd_sees_the_same_bytes) {
  RefusingCalls calls(tree_.root());
  const auto memory = take(calls, true);
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  memory->data()[12345] = std::byte{42};
  auto* const again = static_cast<std::byte*>(
      mmap(nullptr, memory->size_bytes(), PROT_READ, MAP_SHARED, memory->descriptor(), 0));
  ASSERT_NE(again, MAP_FAILED);
  EXPECT_EQ(again[12345], std::byte{42});
  munmap(again, memory->size_bytes());
}

TEST_F(NodeMemoryFaults, memory_that_a_node_does_not_have_is_refused_before_it_is_touched) {
  // Node 1 has 4096 MiB, 3328 of them free; the machine has 6000.
  RefusingCalls calls(tree_.root());
  const auto memory = take(calls, false, 3300 * kMebibyte);
  ASSERT_FALSE(memory.has_value());
  EXPECT_THAT(memory.error().message, HasSubstr("3300 MiB"));
  EXPECT_THAT(memory.error().message, HasSubstr("3328 MiB are available there"));
  EXPECT_EQ(calls.count("populate"), 0);
  EXPECT_EQ(calls.open_count(), 0U);
}

TEST_F(NodeMemoryFaults, a_control_group_that_leaves_less_is_respected) {
  tree_.write("proc/self/cgroup", "0::/");
  tree_.write("sys/fs/cgroup/memory.max", std::to_string(200 * kMebibyte));
  tree_.write("sys/fs/cgroup/memory.current", std::to_string(100 * kMebibyte));
  empty_pools();
  RefusingCalls calls(tree_.root());
  const auto memory = take(calls, false, 99 * kMebibyte);
  ASSERT_FALSE(memory.has_value());
  EXPECT_THAT(memory.error().message, HasSubstr("100 MiB are available"));
  EXPECT_EQ(available_memory_bytes_on_node(1, tree_.root()), 100 * kMebibyte);
  EXPECT_EQ(available_memory_bytes_on_node(2, tree_.root()), 0U);
}

TEST_F(NodeMemoryFaults, a_pool_that_a_control_group_withholds_is_not_asked) {
  tree_.write("proc/self/cgroup", "0::/");
  tree_.write("sys/fs/cgroup/hugetlb.2MB.max", std::to_string(4 * kMebibyte));
  tree_.write("sys/fs/cgroup/hugetlb.2MB.current", "0");
  RefusingCalls calls(tree_.root());
  const auto memory = take(calls, false);
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  EXPECT_NE(memory->page_kind(), PageKind::kHuge2MiB);
  EXPECT_EQ(free_huge_page_bytes_on_node(1, tree_.root()), 4 * kMebibyte);
}

TEST_F(NodeMemoryFaults, free_pages_of_the_pools_are_counted_apart) {
  EXPECT_EQ(free_huge_page_bytes_on_node(0, tree_.root()), 512 * kMebibyte);
  EXPECT_EQ(free_huge_page_bytes_on_node(1, tree_.root()), 256 * kMebibyte);
  EXPECT_EQ(available_memory_bytes_on_node(1, tree_.root()), 3328 * kMebibyte);
}

TEST_F(NodeMemoryFaults, placement_that_may_not_be_asked_for_is_an_error_that_says_so) {
  RefusingCalls calls(tree_.root());
  calls.refuse({"query_pages", EPERM, 0, true});
  std::vector<std::byte> bytes(100'000);
  const auto placement = examine_placement(bytes, 0, &calls);
  ASSERT_FALSE(placement.has_value());
  EXPECT_EQ(placement.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(placement.error().message, HasSubstr("move_pages"));
}

TEST_F(NodeMemoryFaults, placement_of_an_arena_is_known_without_asking_for_pages) {
  if (access("/proc/self/numa_maps", R_OK) != 0) GTEST_SKIP() << "this kernel has no numa_maps";
  RefusingCalls calls(tree_.root());
  calls.refuse({"query_pages", EPERM, 0, true});
  empty_pools();
  for (const bool shared : {false, true}) {
    const auto memory = take(calls, shared);
    ASSERT_TRUE(memory.has_value()) << memory.error().message;
    const std::span<const std::byte> bytes(memory->data(), memory->size_bytes());
    const auto asked = examine_placement(bytes, 0);
    const auto known = examine_placement(bytes, 0, &calls);
    ASSERT_TRUE(known.has_value()) << known.error().message;
    EXPECT_EQ(known->absent_bytes, 0U);
    if (!asked) continue;
    EXPECT_EQ(known->bytes_on_node, asked->bytes_on_node);
    EXPECT_EQ(known->wrong_bytes, asked->wrong_bytes);
    // The placement of a part is not known.
    EXPECT_FALSE(examine_placement(bytes.subspan(4096), 0, &calls).has_value());
  }
}

TEST_F(NodeMemoryFaults, memory_that_may_not_be_locked_is_refused_with_the_remedy) {
  for (const bool shared : {false, true}) {
    RefusingCalls calls(tree_.root());
    calls.refuse({.call = "lock", .error = ENOMEM});
    EXPECT_TRUE(take(calls, shared).has_value());
    EXPECT_EQ(calls.count("lock"), 0);
    const auto refused = NodeMemory::allocate({.bytes = 5 * kMebibyte,
                                               .what = "weights",
                                               .node = 1,
                                               .shared = shared,
                                               .lock = true,
                                               .calls = &calls});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().kind, ErrorKind::kMachineRefused);
    EXPECT_THAT(refused.error().message, HasSubstr("cannot lock 6 MiB of weights"));
    EXPECT_THAT(refused.error().message, HasSubstr("LimitMEMLOCK=infinity"));
    EXPECT_THAT(refused.error().message, HasSubstr("--lock-memory"));
    EXPECT_EQ(calls.open_count(), 0U);
  }
}

}  // namespace
}  // namespace lockstep
