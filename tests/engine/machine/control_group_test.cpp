#include "engine/machine/control_group.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace lockstep {
namespace {

class ControlGroup : public ::testing::Test {
 protected:
  ControlGroup()
      : root_(::testing::TempDir() + "lockstep-control-group-" + std::to_string(getpid())) {
    std::filesystem::remove_all(root_);
  }
  ~ControlGroup() override { std::filesystem::remove_all(root_); }

  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text << '\n';
  }

  std::filesystem::path root_;
};

TEST_F(ControlGroup, without_any_files_nothing_is_limited) {
  const ControlGroupLimits limits = read_control_group_limits(root_);
  EXPECT_FALSE(limits.memory_left_bytes.has_value());
  EXPECT_FALSE(limits.cpus.has_value());
}

TEST_F(ControlGroup, a_service_is_bound_by_its_own_group_and_those_above) {
  write("proc/self/cgroup", "0::/system.slice/lockstepd.service");
  write("sys/fs/cgroup/system.slice/memory.max", "9000");
  write("sys/fs/cgroup/system.slice/memory.current", "1000");
  write("sys/fs/cgroup/system.slice/cpu.max", "max 100000");
  write("sys/fs/cgroup/system.slice/lockstepd.service/memory.max", "5000");
  write("sys/fs/cgroup/system.slice/lockstepd.service/memory.current", "700");
  write("sys/fs/cgroup/system.slice/lockstepd.service/cpu.max", "250000 100000");
  ControlGroupLimits limits = read_control_group_limits(root_);
  EXPECT_EQ(limits.memory_left_bytes, 4300U);
  EXPECT_EQ(limits.cpus, 2.5);
  write("sys/fs/cgroup/system.slice/memory.current", "8500");
  write("sys/fs/cgroup/system.slice/cpu.max", "100000 100000");
  limits = read_control_group_limits(root_);
  EXPECT_EQ(limits.memory_left_bytes, 500U);
  EXPECT_EQ(limits.cpus, 1.0);
}

TEST_F(ControlGroup, file_pages_count_as_free) {
  write("proc/self/cgroup", "0::/");
  write("sys/fs/cgroup/memory.max", "5000");
  write("sys/fs/cgroup/memory.current", "4500");
  write("sys/fs/cgroup/memory.stat",
        "anon 400\nfile 4100\nshmem 100\ninactive_file 1000\nactive_file 3000");
  EXPECT_EQ(read_control_group_limits(root_).memory_left_bytes, 4500U);
}

TEST_F(ControlGroup, a_limit_beyond_which_it_is_throttled_counts_as_one) {
  write("proc/self/cgroup", "0::/");
  write("sys/fs/cgroup/memory.max", "5000");
  write("sys/fs/cgroup/memory.high", "max");
  write("sys/fs/cgroup/memory.current", "1000");
  EXPECT_EQ(read_control_group_limits(root_).memory_left_bytes, 4000U);
  write("sys/fs/cgroup/memory.high", "3000");
  EXPECT_EQ(read_control_group_limits(root_).memory_left_bytes, 2000U);
  write("sys/fs/cgroup/memory.max", "max");
  EXPECT_EQ(read_control_group_limits(root_).memory_left_bytes, 2000U);
}

TEST_F(ControlGroup, the_least_limit_on_huge_pages_of_all_groups_counts) {
  write("proc/self/cgroup", "0::/pods/pod");
  EXPECT_GT(read_control_group_limits(root_).pools.left_bytes(2U << 20U), uint64_t{1} << 62U);
  write("sys/fs/cgroup/pods/hugetlb.2MB.max", "9000");
  write("sys/fs/cgroup/pods/hugetlb.2MB.current", "2000");
  write("sys/fs/cgroup/pods/hugetlb.1GB.rsvd.max", "4000");
  write("sys/fs/cgroup/pods/pod/hugetlb.2MB.max", "8000");
  write("sys/fs/cgroup/pods/pod/hugetlb.2MB.current", "500");
  write("sys/fs/cgroup/pods/pod/hugetlb.1GB.max", "max");
  PoolLimits pools = read_control_group_limits(root_).pools;
  EXPECT_EQ(pools.left_bytes(2U << 20U), 7000U);
  EXPECT_EQ(pools.left_bytes(1U << 30U), 4000U);
  EXPECT_GT(pools.left_bytes(64U << 10U), uint64_t{1} << 62U);
  write("sys/fs/cgroup/pods/pod/hugetlb.2MB.rsvd.max", "8000");
  write("sys/fs/cgroup/pods/pod/hugetlb.2MB.rsvd.current", "7500");
  write("sys/fs/cgroup/pods/pod/hugetlb.1GB.max", "0");
  pools = read_control_group_limits(root_).pools;
  EXPECT_EQ(pools.left_bytes(2U << 20U), 500U);
  EXPECT_EQ(pools.left_bytes(1U << 30U), 0U);
}

TEST_F(ControlGroup, the_first_version_of_the_interface_is_read_as_well) {
  write("proc/self/cgroup", "5:memory:/box\n1:cpu,cpuacct:/box\n7:hugetlb:/box\n0::/");
  write("sys/fs/cgroup/memory/box/memory.stat",
        "inactive_file 9\ntotal_inactive_file 100\nactive_file 9\ntotal_active_file 200");
  write("sys/fs/cgroup/hugetlb/box/hugetlb.2MB.limit_in_bytes", "6000");
  write("sys/fs/cgroup/hugetlb/box/hugetlb.2MB.usage_in_bytes", "1000");
  write("sys/fs/cgroup/hugetlb/box/hugetlb.1GB.limit_in_bytes", "9223372036854771712");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "123456");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2000");
  write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "500");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "300000");
  write("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000");
  const ControlGroupLimits limits = read_control_group_limits(root_);
  EXPECT_EQ(limits.memory_left_bytes, 1800U);
  EXPECT_EQ(limits.cpus, 3.0);
  EXPECT_EQ(limits.pools.left_bytes(2U << 20U), 5000U);
  EXPECT_GT(limits.pools.left_bytes(1U << 30U), uint64_t{1} << 62U);
}

}  // namespace
}  // namespace lockstep
