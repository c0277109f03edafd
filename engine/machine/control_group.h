// The limits of the process's control groups: those that a container or a service manager has set.
// Both versions of the kernel's interface; a group is bound by its own limits and by those of all
// the groups it lies in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>

namespace lockstep {

// The pages that can still be reserved of the pools of huge pages, of all nodes together.
struct PoolLimits {
  uint64_t left_2mib_bytes = std::numeric_limits<uint64_t>::max();
  uint64_t left_1gib_bytes = std::numeric_limits<uint64_t>::max();

  uint64_t left_bytes(uint64_t page_bytes) const;
};

struct ControlGroupLimits {
  // Memory that can still be taken without being refused or throttled; what the kernel gives back
  // when asked (file pages) counts as free. None: unlimited.
  std::optional<uint64_t> memory_left_bytes;
  PoolLimits pools;
  std::optional<double> cpus;  // processors' worth of time; none: unlimited
};

// `root` is / or a copy of its shape: proc/self/cgroup and sys/fs/cgroup below it are read. What is
// not there sets no limit.
ControlGroupLimits read_control_group_limits(const std::filesystem::path& root = "/");

}  // namespace lockstep
