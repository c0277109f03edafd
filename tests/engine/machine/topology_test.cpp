#include "engine/machine/topology.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep {
namespace {

class TopologyTest : public ::testing::Test {
 protected:
  TopologyTest() : root_(::testing::TempDir() + "lockstep-topology") {
    std::filesystem::remove_all(root_);
  }
  ~TopologyTest() override { std::filesystem::remove_all(root_); }

  void add_cpu(int id, int package, int core) {
    const auto folder = root_ / "devices/system/cpu" / ("cpu" + std::to_string(id)) / "topology";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "physical_package_id") << package << '\n';
    std::ofstream(folder / "core_id") << core << '\n';
  }

  std::filesystem::path root_;
};

TEST_F(TopologyTest, siblings_count_as_one_core) {
  for (int cpu = 0; cpu < 8; ++cpu) add_cpu(cpu, 0, cpu % 4);
  EXPECT_EQ(one_cpu_per_core(read_topology(root_, {0, 1, 2, 3, 4, 5, 6, 7})),
            (std::vector<int>{0, 1, 2, 3}));
}

TEST_F(TopologyTest, the_same_core_number_on_two_sockets_is_two_cores) {
  for (int cpu = 0; cpu < 4; ++cpu) add_cpu(cpu, cpu / 2, cpu % 2);
  EXPECT_EQ(one_cpu_per_core(read_topology(root_, {0, 1, 2, 3})).size(), 4U);
}

TEST_F(TopologyTest, only_allowed_processors_are_seen) {
  for (int cpu = 0; cpu < 8; ++cpu) add_cpu(cpu, 0, cpu % 4);
  EXPECT_EQ(one_cpu_per_core(read_topology(root_, {5, 6})), (std::vector<int>{5, 6}));
}

TEST_F(TopologyTest, a_processor_without_a_description_is_a_core_of_its_own) {
  EXPECT_EQ(one_cpu_per_core(read_topology(root_, {0, 1})), (std::vector<int>{0, 1}));
}

TEST_F(TopologyTest, this_machine_has_a_processor) {
  EXPECT_FALSE(one_cpu_per_core(read_topology()).empty());
}

}  // namespace
}  // namespace lockstep
