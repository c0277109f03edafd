#include "engine/machine/control_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {
namespace {

using std::filesystem::path;

// The files of one version of the interface.
struct Interface {
  std::string controller;  // of version 1; empty for version 2
  std::string folder;      // below sys/fs/cgroup
};

// The group's path as /proc/self/cgroup has it: "0::/a/b", or "4:cpu,cpuacct:/a/b" in version 1.
std::optional<std::string> group_path(const path& root, const std::string& controller) {
  std::ifstream file(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers =
        fmt::format(",{},", std::string_view(line).substr(first + 1, second - first - 1));
    const bool wanted =
        controller.empty() ? controllers == ",,"
                           : controllers.find(fmt::format(",{},", controller)) != std::string::npos;
    if (wanted) return line.substr(second + 1);
  }
  return std::nullopt;
}

// The group's folder and those above it. In a container of its own namespace the path may not be
// there: the mounted root is then the group.
std::vector<path> group_folders(const path& root, const Interface& interface) {
  const auto group = group_path(root, interface.controller);
  if (!group) return {};
  const path mounted = root / "sys/fs/cgroup" / interface.folder;
  std::vector<path> folders = {mounted};
  path folder = mounted;
  for (const path& part : path(*group).relative_path()) {
    folder /= part;
    folders.push_back(folder);
  }
  return folders;
}

std::optional<uint64_t> read_number(const path& file) {
  std::ifstream stream(file);
  uint64_t number = 0;
  if (stream >> number) return number;
  return std::nullopt;
}

uint64_t read_statistic(const path& file, const std::string& name) {
  std::ifstream stream(file);
  std::string key;
  uint64_t value = 0;
  while (stream >> key >> value) {
    if (key == name) return value;
  }
  return 0;
}

void take_least(std::optional<uint64_t>& least, uint64_t value) {
  least = least ? std::min(*least, value) : value;
}

void read_memory(const path& folder, const char* limit_name, const char* used_name,
                 const char* idle_name, ControlGroupLimits& limits) {
  const auto limit = read_number(folder / limit_name);  // "max" is no number
  const auto used = read_number(folder / used_name);
  // Version 1 says "unlimited" by a number near the largest.
  if (!limit || !used || *limit >= uint64_t{1} << 62U) return;
  const uint64_t idle = std::min(*used, read_statistic(folder / "memory.stat", idle_name));
  const uint64_t busy = *used - idle;
  take_least(limits.memory_left_bytes, *limit > busy ? *limit - busy : 0);
}

void take_quota(double quota, double period, ControlGroupLimits& limits) {
  if (quota <= 0 || period <= 0) return;
  limits.cpus = std::min(limits.cpus.value_or(std::numeric_limits<double>::max()), quota / period);
}

void read_quota_v2(const path& folder, ControlGroupLimits& limits) {
  std::ifstream stream(folder / "cpu.max");
  double quota = 0;
  double period = 0;
  if (stream >> quota >> period) take_quota(quota, period, limits);  // "max 100000" has no quota
}

void read_quota_v1(const path& folder, ControlGroupLimits& limits) {
  const auto quota = read_number(folder / "cpu.cfs_quota_us");  // -1 is no number of this kind
  const auto period = read_number(folder / "cpu.cfs_period_us");
  if (!quota || !period || *quota >= uint64_t{1} << 62U) return;
  take_quota(static_cast<double>(*quota), static_cast<double>(*period), limits);
}

}  // namespace

ControlGroupLimits read_control_group_limits(const path& root) {
  ControlGroupLimits limits;
  for (const path& folder : group_folders(root, {"", ""})) {
    read_memory(folder, "memory.max", "memory.current", "inactive_file", limits);
    read_quota_v2(folder, limits);
  }
  for (const path& folder : group_folders(root, {"memory", "memory"})) {
    read_memory(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                limits);
  }
  for (const path& folder : group_folders(root, {"cpu", "cpu"})) read_quota_v1(folder, limits);
  return limits;
}

}  // namespace lockstep
