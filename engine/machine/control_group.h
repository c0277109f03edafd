// What the process's control groups leave it: the limits a container or a service manager has set.
// Both versions of the kernel's interface; a group is bound by its own limits and by those of all
// the groups it lies in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lockstep {

struct ControlGroupLimits {
  // Memory that can still be taken; what the kernel gives back when asked (file pages that nobody
  // has used for a while) counts as free. None: unlimited.
  std::optional<uint64_t> memory_left_bytes;
  std::optional<double> cpus;  // processors' worth of time; none: unlimited
};

// `root` is / or a copy of its shape: proc/self/cgroup and sys/fs/cgroup below it are read. What is
// not there sets no limit.
ControlGroupLimits read_control_group_limits(const std::filesystem::path& root = "/");

}  // namespace lockstep
