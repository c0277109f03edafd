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

TEST_F(ControlGroup, idle_file_pages_count_as_free) {
  write("proc/self/cgroup", "0::/");
  write("sys/fs/cgroup/memory.max", "5000");
  write("sys/fs/cgroup/memory.current", "4500");
  write("sys/fs/cgroup/memory.stat", "anon 400\nfile 4100\ninactive_file 4000");
  EXPECT_EQ(read_control_group_limits(root_).memory_left_bytes, 4500U);
}

TEST_F(ControlGroup, the_first_version_of_the_interface_is_read_as_well) {
  write("proc/self/cgroup", "5:memory:/box\n1:cpu,cpuacct:/box\n0::/");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "123456");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2000");
  write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "500");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "300000");
  write("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000");
  const ControlGroupLimits limits = read_control_group_limits(root_);
  EXPECT_EQ(limits.memory_left_bytes, 1500U);
  EXPECT_EQ(limits.cpus, 3.0);
}

}  // namespace
}  // namespace lockstep
