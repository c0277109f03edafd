#include "engine/machine/topology.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/machine/simulated_gpus.h"
#include "tests/engine/machine/sysfs_tree.h"

namespace lockstep {
namespace {

class TopologyTest : public ::testing::Test {
 protected:
  void add_cpu(int id, int package, int core) {
    tree_.write({.cpus = {{id, {.package = package, .core = core}}}});
  }

  SysfsTree tree_;
};

std::vector<int> nodes_of_cpus(const Topology& topology) {
  std::vector<int> nodes;
  for (const Cpu& cpu : topology.cpus) nodes.push_back(cpu.node);
  return nodes;
}

std::vector<int> ids_of_cpus(const Topology& topology) {
  std::vector<int> ids;
  for (const Cpu& cpu : topology.cpus) ids.push_back(cpu.id);
  return ids;
}

TEST_F(TopologyTest, siblings_count_as_one_core) {
  for (int cpu = 0; cpu < 8; ++cpu) add_cpu(cpu, 0, cpu % 4);
  EXPECT_EQ(one_cpu_per_core(read_topology(tree_.sysfs(), {0, 1, 2, 3, 4, 5, 6, 7})),
            (std::vector<int>{0, 1, 2, 3}));
}

TEST_F(TopologyTest, the_same_core_number_on_two_sockets_is_two_cores) {
  for (int cpu = 0; cpu < 4; ++cpu) add_cpu(cpu, cpu / 2, cpu % 2);
  EXPECT_EQ(one_cpu_per_core(read_topology(tree_.sysfs(), {0, 1, 2, 3})).size(), 4U);
}

TEST_F(TopologyTest, the_same_core_number_on_two_dies_of_a_package_is_two_cores) {
  const MachineFiles machine{.online_cpus = "0-3",
                             .cpus = {{0, {.package = 0, .core = 0, .siblings = "0,2"}},
                                      {1, {.package = 0, .core = 0, .siblings = "1,3"}},
                                      {2, {.package = 0, .core = 0, .siblings = "0,2"}},
                                      {3, {.package = 0, .core = 0, .siblings = "1,3"}}}};
  tree_.write(machine);
  EXPECT_EQ(one_cpu_per_core(read_topology(tree_.sysfs(), {0, 1, 2, 3})), (std::vector<int>{0, 1}));
}

TEST_F(TopologyTest, only_allowed_processors_are_seen) {
  for (int cpu = 0; cpu < 8; ++cpu) add_cpu(cpu, 0, cpu % 4);
  EXPECT_EQ(one_cpu_per_core(read_topology(tree_.sysfs(), {5, 6})), (std::vector<int>{5, 6}));
}

TEST_F(TopologyTest, a_processor_without_a_description_is_a_core_of_its_own) {
  EXPECT_EQ(one_cpu_per_core(read_topology(tree_.sysfs(), {0, 1})), (std::vector<int>{0, 1}));
}

TEST_F(TopologyTest, processors_that_share_a_cache_of_level_3_have_its_number) {
  tree_.write(machine_of_caches({3, 2, 1}));
  const std::vector<int> all = {0, 1, 2, 3, 4, 5};
  const Topology topology = read_topology(tree_.sysfs(), all);
  EXPECT_EQ(caches_of(topology, all), (std::vector<int>{0, 0, 0, 3, 3, 5}));
  EXPECT_EQ(caches_of(topology, std::vector<int>{4, 1}), (std::vector<int>{3, 0}));
  // The lowest that shares it need not be one that this process may use.
  EXPECT_EQ(caches_of(read_topology(tree_.sysfs(), {2, 4}), std::vector<int>{2, 4}),
            (std::vector<int>{0, 3}));
}

TEST_F(TopologyTest, caches_that_the_machine_does_not_tell_are_unknown) {
  tree_.write(machine_of_caches({2, 2}));
  tree_.write("sys/devices/system/cpu/cpu1/cache/index3/shared_cpu_list", "nonsense");
  tree_.write("sys/devices/system/cpu/cpu2/cache/index3/shared_cpu_list", "0-1");  // not itself
  tree_.write("sys/devices/system/cpu/cpu3/cache/index3/level", "4");
  const std::vector<int> all = {0, 1, 2, 3, 4};
  const Topology topology = read_topology(tree_.sysfs(), all);
  EXPECT_EQ(caches_of(topology, std::vector<int>{0}), std::vector<int>{0});
  for (const int id : {1, 2, 3, 4, -1}) {  // 4 has no files; -1 is no processor
    EXPECT_TRUE(caches_of(topology, std::vector<int>{0, id}).empty()) << id;
  }
}

TEST_F(TopologyTest, this_machine_has_a_processor_and_a_node_with_memory_for_each) {
  const Topology topology = read_topology();
  EXPECT_FALSE(one_cpu_per_core(topology).empty());
  EXPECT_TRUE(std::ranges::any_of(topology.nodes, &Node::has_usable_memory));
  for (const Cpu& cpu : topology.cpus) EXPECT_NE(topology.find_node(cpu.node), nullptr) << cpu.id;
  for (const Node& node : topology.nodes) {
    EXPECT_EQ(node.distances.size(), topology.nodes.size()) << node.id;
  }
}

TEST_F(TopologyTest, a_machine_that_knows_no_nodes_is_one_node_with_everything) {
  tree_.write({.online_cpus = "0-3", .cpus = plain_cpus(4, 4)});
  tree_.write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 300 kB\nInactive(file): 50 kB");
  tree_.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "7");
  tree_.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "3");
  const Topology topology = read_topology(tree_.sysfs(), {0, 1, 2}, {});
  ASSERT_EQ(topology.nodes.size(), 1U);
  const Node& node = topology.nodes.front();
  EXPECT_EQ(node.id, 0);
  EXPECT_EQ(node.memory_bytes, 1000U * 1024);
  EXPECT_EQ(node.free_bytes, 350U * 1024);
  EXPECT_TRUE(node.memory_allowed);
  EXPECT_EQ(node.cpu_count, 4U);
  EXPECT_EQ(node.distances, std::vector<int>{10});
  ASSERT_EQ(node.pools.size(), 1U);
  EXPECT_EQ(node.pools[0].page_bytes, 2U << 20U);
  EXPECT_EQ(node.pools[0].total_pages, 7U);
  EXPECT_EQ(node.pools[0].free_pages, 3U);
  EXPECT_EQ(nodes_of_cpus(topology), (std::vector<int>{0, 0, 0}));
}

TEST_F(TopologyTest, two_sockets_have_their_processors_memory_distances_and_pools) {
  tree_.write(two_socket_machine());
  const Topology topology = read_topology(tree_.sysfs(), {0, 1, 4, 8, 12});
  ASSERT_EQ(topology.nodes.size(), 2U);
  const Node& node = topology.nodes[0];
  EXPECT_EQ(node.memory_bytes, 4096ULL << 20U);
  // Half is free, a quarter are file pages, a half of an eighth is the kernel's that it gives back.
  EXPECT_EQ(node.free_bytes, (4096ULL << 20U) / 16 * 13);
  EXPECT_EQ(node.cpu_count, 8U);
  EXPECT_EQ(topology.distance(0, 1), 21);
  EXPECT_EQ(topology.distance(1, 1), 10);
  ASSERT_EQ(node.pools.size(), 2U);
  EXPECT_EQ(node.pools[0].page_bytes, 2U << 20U);
  EXPECT_EQ(node.pools[0].total_pages, 512U);
  EXPECT_EQ(node.pools[0].free_pages, 256U);
  EXPECT_EQ(node.pools[1].page_bytes, 1U << 30U);
  EXPECT_EQ(nodes_of_cpus(topology), (std::vector<int>{0, 0, 1, 0, 1}));
  EXPECT_EQ(one_cpu_per_core(topology), (std::vector<int>{0, 1, 4}));
}

TEST_F(TopologyTest, two_sockets_of_four_sub_nodes_are_eight_nodes) {
  tree_.write(sub_node_machine());
  const Topology topology = read_topology(tree_.sysfs(), {0, 3, 15});
  ASSERT_EQ(topology.nodes.size(), 8U);
  EXPECT_EQ(nodes_of_cpus(topology), (std::vector<int>{0, 1, 7}));
  EXPECT_EQ(topology.distance(0, 3), 12);
  EXPECT_EQ(topology.distance(0, 4), 32);
}

TEST_F(TopologyTest, uneven_distances_are_those_between_the_nodes) {
  tree_.write(eight_node_machine());
  const Topology topology = read_topology(tree_.sysfs(), {0});
  EXPECT_EQ(topology.distance(0, 2), 19);
  EXPECT_EQ(topology.distance(3, 4), 51);
  EXPECT_EQ(topology.distance(5, 4), 16);
}

TEST_F(TopologyTest, nodes_may_lack_memory_or_processors_and_numbers_may_be_missing) {
  tree_.write(lopsided_machine());
  const Topology topology = read_topology(tree_.sysfs(), {0, 1, 2, 3, 4, 5});
  ASSERT_EQ(topology.nodes.size(), 4U);
  EXPECT_FALSE(topology.nodes[1].has_usable_memory());
  EXPECT_EQ(topology.nodes[1].cpu_count, 2U);
  EXPECT_EQ(topology.nodes[2].cpu_count, 0U);
  EXPECT_TRUE(topology.nodes[2].has_usable_memory());
  EXPECT_EQ(topology.nodes[3].id, 7);
  EXPECT_EQ(topology.find_node(7), &topology.nodes[3]);
  EXPECT_EQ(topology.find_node(3), nullptr);
  EXPECT_EQ(topology.distance(1, 3), 15);
  EXPECT_EQ(nodes_of_cpus(topology), (std::vector<int>{0, 0, 1, 1, 7, 7}));
}

TEST_F(TopologyTest, gpus_are_found_by_their_index_whatever_their_place) {
  Topology topology = machine_with_gpus();
  topology.gpus.erase(topology.gpus.begin() + 1);
  EXPECT_EQ(topology.find_gpu(0), &topology.gpus[0]);
  EXPECT_EQ(topology.find_gpu(3), &topology.gpus[2]);
  EXPECT_EQ(topology.find_gpu(1), nullptr);
  EXPECT_EQ(topology.find_gpu(-1), nullptr);
  EXPECT_EQ(&gpu_at(topology, 2), &topology.gpus[1]);
  EXPECT_DEATH(gpu_at(topology, 1), "no gpu1 in this machine");
}

TEST_F(TopologyTest, a_cpuset_across_nodes_leaves_its_processors_and_memory) {
  tree_.write(two_socket_machine());
  const Topology topology = read_topology(tree_.sysfs(), {2, 3, 4, 5, 12}, {1});
  EXPECT_EQ(nodes_of_cpus(topology), (std::vector<int>{0, 0, 1, 1, 1}));
  EXPECT_FALSE(topology.nodes[0].has_usable_memory());
  EXPECT_GT(topology.nodes[0].memory_bytes, 0U);
  EXPECT_TRUE(topology.nodes[1].has_usable_memory());
  EXPECT_EQ(topology.nodes[0].cpu_count, 8U);
  EXPECT_EQ(one_cpu_per_core(topology), (std::vector<int>{2, 3, 4, 5}));
}

TEST_F(TopologyTest, processors_that_are_offline_are_left_out_though_allowed) {
  MachineFiles machine = two_socket_machine();
  machine.online_cpus = "0-2,4-15";
  tree_.write(machine);
  const Topology topology = read_topology(tree_.sysfs(), {2, 3, 4});
  EXPECT_EQ(ids_of_cpus(topology), (std::vector<int>{2, 4}));
  EXPECT_EQ(topology.nodes[0].cpu_count, 7U);
}

TEST_F(TopologyTest, processors_are_in_order_of_id_whatever_order_they_are_given_in) {
  tree_.write(one_node_machine());
  EXPECT_EQ(ids_of_cpus(read_topology(tree_.sysfs(), {3, 0, 3, 1})), (std::vector<int>{0, 1, 3}));
}

TEST_F(TopologyTest, without_a_list_of_nodes_their_folders_are_taken_and_distances_simulated) {
  MachineFiles machine = two_socket_machine();
  for (NodeFiles& node : machine.nodes) node.distances.clear();
  tree_.write(machine);
  std::filesystem::remove(tree_.sysfs() / "devices/system/node/online");
  const Topology topology = read_topology(tree_.sysfs(), {0, 4});
  ASSERT_EQ(topology.nodes.size(), 2U);
  EXPECT_EQ(topology.nodes[1].id, 1);
  EXPECT_EQ(topology.nodes[1].distances, (std::vector<int>{20, 10}));
}

TEST(NumberList, ranges_and_single_numbers_are_parsed) {
  EXPECT_EQ(parse_number_list("0-3,8,10-11\n"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_number_list(" 5"), std::vector<int>{5});
  EXPECT_EQ(parse_number_list(""), std::vector<int>{});
  EXPECT_EQ(parse_number_list("\n"), std::vector<int>{});
}

TEST(NumberList, text_that_is_no_list_is_refused) {
  for (const char* const text : {"a", "1-", "-1", "3-1", "1,,2", "1,", ",1", "1 2", "0-4294967295",
                                 "99999999999999999999", "0-65536", "1;2", "0x1"}) {
    EXPECT_EQ(parse_number_list(text), std::nullopt) << text;
  }
}

TEST(NumberList, what_is_written_is_parsed_again) {
  for (const char* const text : {"", "0", "0-3,8,10-11", "1,3,5"}) {
    EXPECT_EQ(write_number_list(parse_number_list(text).value()), text);
  }
}

}  // namespace
}  // namespace lockstep
