#include "engine/machine/machine_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/machine/sysfs_tree.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1U << 20U;
constexpr const char* kHugePages = "sys/kernel/mm/transparent_hugepage/";

class MachineSettingsTest : public ::testing::Test {
 protected:
  MachineSettings read() const { return read_machine_settings(tree_.root()); }

  SysfsTree tree_{"settings"};
};

// A machine on which nothing is wrong.
MachineSettings good_settings() {
  MachineSettings settings;
  settings.numa_balancing = 0;
  settings.transparent_huge_pages = "madvise";
  settings.governors = {"performance"};
  settings.overcommit = 0;
  return settings;
}

TEST_F(MachineSettingsTest, without_any_files_nothing_is_known) {
  const MachineSettings settings = read();
  EXPECT_FALSE(settings.numa_balancing.has_value());
  EXPECT_EQ(settings.transparent_huge_pages, "");
  EXPECT_FALSE(settings.memlock_bytes.has_value());
  EXPECT_TRUE(settings.governors.empty());
  EXPECT_FALSE(settings.in_container);
  EXPECT_FALSE(gives_huge_pages(settings));
  EXPECT_FALSE(gives_shared_huge_pages(settings));
}

TEST_F(MachineSettingsTest, every_setting_is_read) {
  tree_.write("proc/sys/kernel/numa_balancing", "1");
  tree_.write(std::string(kHugePages) + "enabled", "always [madvise] never");
  tree_.write(std::string(kHugePages) + "shmem_enabled",
              "always within_size [advise] never deny force");
  tree_.write("proc/self/limits",
              "Limit                     Soft Limit           Hard Limit           Units\n"
              "Max locked memory         8388608              unlimited            bytes");
  tree_.write("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "powersave");
  tree_.write("sys/devices/system/cpu/cpufreq/policy1/scaling_governor", "powersave");
  tree_.write("proc/sys/vm/overcommit_memory", "2");
  tree_.write("proc/meminfo", "MemTotal: 9000 kB\nCommitLimit: 5000 kB\nCommitted_AS: 2000 kB");
  tree_.write(".dockerenv", "");
  const MachineSettings settings = read();
  EXPECT_EQ(settings.numa_balancing, 1);
  EXPECT_EQ(settings.transparent_huge_pages, "madvise");
  EXPECT_TRUE(gives_huge_pages(settings));
  EXPECT_EQ(settings.shared_huge_pages, "advise");
  EXPECT_TRUE(gives_shared_huge_pages(settings));
  EXPECT_EQ(settings.memlock_bytes, 8388608U);
  EXPECT_EQ(settings.governors, std::vector<std::string>{"powersave"});
  EXPECT_EQ(settings.overcommit, 2);
  EXPECT_EQ(settings.commit_left_bytes, 3000U * 1024);
  EXPECT_TRUE(settings.in_container);
}

TEST_F(MachineSettingsTest, an_unlimited_memlock_is_no_limit) {
  tree_.write("proc/self/limits",
              "Max locked memory         unlimited            unlimited  bytes");
  EXPECT_FALSE(read().memlock_bytes.has_value());
}

TEST_F(MachineSettingsTest, a_choice_for_the_page_size_goes_before_the_one_for_all) {
  tree_.write(std::string(kHugePages) + "enabled", "always [madvise] never");
  tree_.write(std::string(kHugePages) + "hugepages-2048kB/enabled",
              "always [inherit] madvise never");
  EXPECT_EQ(read().transparent_huge_pages, "madvise");
  tree_.write(std::string(kHugePages) + "hugepages-2048kB/enabled",
              "always inherit madvise [never]");
  EXPECT_EQ(read().transparent_huge_pages, "never");
}

TEST(MachineFaults, a_machine_that_is_set_up_well_has_none) {
  for (const NamedTopology& simulated : simulated_topologies()) {
    if (simulated.name != "one node" && simulated.name != "two sockets") continue;
    const auto faults = find_machine_faults(simulated.topology, good_settings(), {});
    EXPECT_TRUE(faults.empty()) << simulated.name << ": " << faults.front().sentence;
  }
}

struct Case {
  MachineSettings settings;
  MachineHints hints;
  std::string sentence;
  std::string command;
};

TEST(MachineFaults, each_is_named_with_its_values_and_the_command_that_mends_it) {
  std::vector<Case> cases;
  const auto add = [&](const std::string& sentence, const std::string& command) -> Case& {
    return cases.emplace_back(Case{good_settings(), {}, sentence, command});
  };
  add("numa_balancing is 1", "sysctl -w kernel.numa_balancing=0").settings.numa_balancing = 1;
  add("never", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
      .settings.transparent_huge_pages = "never";
  add("governor powersave", "scaling_governor").settings.governors = {"powersave"};
  Case& locked = add("8192 KiB", "LimitMEMLOCK=infinity");
  locked.settings.memlock_bytes = 8 * kMiB;
  locked.hints.locked_bytes = 64 * kMiB;
  Case& mapped = add("100 MiB more", "vm.overcommit_memory=0");
  mapped.settings.overcommit = 2;
  mapped.settings.commit_left_bytes = 100 * kMiB;
  mapped.hints.mapped_bytes = 101 * kMiB;
  // Half of the 256 pages of node 1 are free; 150 are needed, so 22 more.
  add("128 huge pages of 2048 KiB are free on node 1, 150 are needed",
      "echo 278 > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages")
      .hints.huge_pages = {{.node = 1, .bytes = 299 * kMiB}};
  add("0 huge pages of 1048576 KiB are free on node 0, 3 are needed",
      "echo 3 > /sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages")
      .hints.huge_pages = {{.node = 0, .page_bytes = 1024 * kMiB, .bytes = 3072 * kMiB}};
  const Topology topology = topology_of(two_socket_machine(), "0-15", "0-1");
  for (const Case& it : cases) {
    const auto faults = find_machine_faults(topology, it.settings, it.hints);
    ASSERT_EQ(faults.size(), 1U) << it.sentence;
    EXPECT_THAT(faults[0].sentence, HasSubstr(it.sentence));
    EXPECT_THAT(faults[0].command, HasSubstr(it.command));
  }
}

TEST(MachineFaults, balancing_is_no_fault_on_one_node) {
  MachineSettings settings = good_settings();
  settings.numa_balancing = 1;
  EXPECT_TRUE(
      find_machine_faults(topology_of(one_node_machine(), "0-3", "0"), settings, {}).empty());
}

TEST(MachineFaults, weights_that_1_gib_pages_hold_miss_no_smaller_ones) {
  Topology topology = topology_of(two_socket_machine(), "0-15", "0-1");
  topology.nodes[1].pools.back() = {.page_bytes = 1024 * kMiB, .total_pages = 3, .free_pages = 3};
  MachineHints hints{.huge_pages = {{.node = 1, .bytes = 3000 * kMiB}}};
  EXPECT_TRUE(find_machine_faults(topology, good_settings(), hints).empty());
  hints.huge_pages[0].bytes = 2200 * kMiB;  // would waste most of a page
  EXPECT_EQ(find_machine_faults(topology, good_settings(), hints).size(), 1U);
}

TEST(MachineFaults, requests_that_are_met_are_no_faults) {
  MachineSettings settings = good_settings();
  settings.memlock_bytes = 64 * kMiB;
  const MachineHints hints{.huge_pages = {{.node = 1, .bytes = 256 * kMiB}},
                           .locked_bytes = 64 * kMiB,
                           .mapped_bytes = 1U << 30U};
  EXPECT_TRUE(find_machine_faults(topology_of(two_socket_machine(), "0-15", "0-1"), settings, hints)
                  .empty());
}

TEST(MachineFaults, memory_and_processors_that_are_withheld_are_named) {
  const Topology topology = topology_of(two_socket_machine(), "0-3,8-11", "0");
  MachineSettings settings = good_settings();
  const auto faults = find_machine_faults(topology, settings, {});
  ASSERT_EQ(faults.size(), 2U);
  EXPECT_THAT(faults[0].sentence, HasSubstr("node 1 has 4096 MiB of memory"));
  EXPECT_THAT(faults[0].command, HasSubstr("AllowedMemoryNodes=0-1"));
  EXPECT_THAT(faults[1].sentence, HasSubstr("0 of the 8 processors of node 1"));
  settings.in_container = true;
  EXPECT_THAT(find_machine_faults(topology, settings, {})[0].command,
              HasSubstr("--cpuset-mems 0-1"));
}

TEST(MachineFaults, this_machines_faults_each_have_a_sentence_and_a_command) {
  for (const MachineFault& fault :
       find_machine_faults(read_topology(), read_machine_settings(), {})) {
    EXPECT_FALSE(fault.sentence.empty());
    EXPECT_FALSE(fault.command.empty());
  }
}

}  // namespace
}  // namespace lockstep
