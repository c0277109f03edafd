#include "engine/machine/gpu.h"

#include <gtest/gtest.h>

#include "tests/engine/machine/sysfs_tree.h"

namespace lockstep {
namespace {

TEST(Gpu, its_node_is_what_the_kernel_says_of_its_pci_address) {
  const SysfsTree tree("gpu");
  tree.write("sys/bus/pci/devices/0000:65:00.0/numa_node", "1");
  tree.write("sys/bus/pci/devices/0001:ca:00.0/numa_node", "3");
  tree.write("sys/bus/pci/devices/0000:17:00.0/numa_node", "-1");
  EXPECT_EQ(node_of_pci_device(tree.sysfs(), "0000:65:00.0"), 1);
  EXPECT_EQ(node_of_pci_device(tree.sysfs(), "0001:CA:00.0"), 3);
  EXPECT_EQ(node_of_pci_device(tree.sysfs(), "0000:17:00.0"), -1);
  EXPECT_EQ(node_of_pci_device(tree.sysfs(), "0000:66:00.0"), -1);
}

TEST(Gpu, this_machine_has_some_or_a_reason_why_not) {
  const GpuReading reading = read_gpus();
  EXPECT_EQ(reading.gpus.empty(), !reading.absence.empty()) << reading.absence;
  for (size_t index = 0; index < reading.gpus.size(); ++index) {
    const Gpu& gpu = reading.gpus[index];
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_GT(gpu.memory_bytes, 0U);
    EXPECT_LE(gpu.free_bytes, gpu.memory_bytes);
    EXPECT_GE(gpu.capability_major, 1);
    EXPECT_GT(gpu.multiprocessor_count, 0);
    ASSERT_EQ(gpu.links.size(), reading.gpus.size());
    for (size_t other = 0; other < gpu.links.size(); ++other) {
      EXPECT_EQ(gpu.links[other] == GpuLink::kSelf, other == index);
    }
  }
}

}  // namespace
}  // namespace lockstep
