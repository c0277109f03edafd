#include "engine/machine/control_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/machine/arena_rules.h"

namespace lockstep {
namespace {

using std::filesystem::path;

// Names of files are strings here, not paths: arenas are made where memory is short, and paths that
// are put together while there is none end the program (libstdc++ 12).

// The files of one version of the interface.
struct Interface {
  std::string controller;  // of version 1; empty for version 2
  std::string folder;      // below sys/fs/cgroup
};

// The group's path as /proc/self/cgroup has it: "0::/a/b", or "4:cpu,cpuacct:/a/b" in version 1.
std::optional<std::string> group_path(const path& root, const std::string& controller) {
  std::ifstream file(root.native() + "/proc/self/cgroup");
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

// The group's folder and those above it, each with a slash at its end. In a container of its own
// namespace the path may not be there: the mounted root is then the group.
std::vector<std::string> group_folders(const path& root, const Interface& interface) {
  const auto group = group_path(root, interface.controller);
  if (!group) return {};
  const std::string mounted = root.native() + "/sys/fs/cgroup/" + interface.folder;
  std::vector<std::string> folders = {mounted + "/"};
  for (size_t end = 0; end + 1 < group->size();) {
    end = std::min(group->find('/', end + 1), group->size());
    folders.push_back(mounted + group->substr(0, end) + "/");
  }
  return folders;
}

std::optional<uint64_t> read_number(const std::string& file) {
  std::ifstream stream(file);
  uint64_t number = 0;
  if (stream >> number) return number;
  return std::nullopt;
}

uint64_t read_statistic(const std::string& file, const std::string& name) {
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

// None: unlimited.
std::optional<uint64_t> read_limit(const std::string& file) {
  const auto limit = read_number(file);  // "max" is no number
  // Version 1 says "unlimited" by a number near the largest.
  if (!limit || *limit >= uint64_t{1} << 62U) return std::nullopt;
  return limit;
}

uint64_t left_of(uint64_t limit, uint64_t used) {
  return limit > used ? limit - used : 0;
}

// `prefix` of the names in memory.stat: "total_" in version 1, where the plain names leave out the
// groups below.
void read_memory(const std::string& folder, const char* limit_name, const char* used_name,
                 const std::string& prefix, ControlGroupLimits& limits) {
  const auto limit = read_limit(folder + limit_name);
  const auto used = read_number(folder + used_name);
  if (!limit || !used) return;
  // Both lists hold file pages alone: those of a tmpfs, which cannot be dropped, are on others.
  const std::string statistics = folder + "memory.stat";
  const uint64_t files = read_statistic(statistics, prefix + "active_file") +
                         read_statistic(statistics, prefix + "inactive_file");
  take_least(limits.memory_left_bytes, left_of(*limit, *used - std::min(*used, files)));
}

// `limit_name`: the end of the limit's name, "max"; `used_name`: "current". Pages count when they
// are reserved, in the files with "rsvd", and again when they are touched.
void read_pools(const std::string& folder, const std::string& limit_name,
                const std::string& used_name, PoolLimits& pools) {
  const auto read = [&](const std::string& size, uint64_t& left) {
    for (const char* const reserved : {"", "rsvd."}) {
      const std::string name = "hugetlb." + size + "." + reserved;
      const auto limit = read_limit(folder + name + limit_name);
      if (!limit) continue;
      const uint64_t used = read_number(folder + name + used_name).value_or(0);
      left = std::min(left, left_of(*limit, used));
    }
  };
  read("2MB", pools.left_2mib_bytes);
  read("1GB", pools.left_1gib_bytes);
}

void take_quota(double quota, double period, ControlGroupLimits& limits) {
  if (quota <= 0 || period <= 0) return;
  limits.cpus = std::min(limits.cpus.value_or(std::numeric_limits<double>::max()), quota / period);
}

void read_quota_v2(const std::string& folder, ControlGroupLimits& limits) {
  std::ifstream stream(folder + "cpu.max");
  double quota = 0;
  double period = 0;
  if (stream >> quota >> period) take_quota(quota, period, limits);  // "max 100000" has no quota
}

void read_quota_v1(const std::string& folder, ControlGroupLimits& limits) {
  const auto quota = read_number(folder + "cpu.cfs_quota_us");  // -1 is no number of this kind
  const auto period = read_number(folder + "cpu.cfs_period_us");
  if (!quota || !period || *quota >= uint64_t{1} << 62U) return;
  take_quota(static_cast<double>(*quota), static_cast<double>(*period), limits);
}

}  // namespace

uint64_t PoolLimits::left_bytes(uint64_t page_bytes) const {
  if (page_bytes == kHugePageBytes) return left_2mib_bytes;
  return page_bytes == kGigaPageBytes ? left_1gib_bytes : std::numeric_limits<uint64_t>::max();
}

ControlGroupLimits read_control_group_limits(const path& root) {
  ControlGroupLimits limits;
  for (const std::string& folder : group_folders(root, {"", ""})) {
    read_memory(folder, "memory.max", "memory.current", "", limits);
    // A process beyond it is not refused, but held up until nothing moves.
    read_memory(folder, "memory.high", "memory.current", "", limits);
    read_pools(folder, "max", "current", limits.pools);
    read_quota_v2(folder, limits);
  }
  for (const std::string& folder : group_folders(root, {"memory", "memory"})) {
    read_memory(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_", limits);
  }
  for (const std::string& folder : group_folders(root, {"hugetlb", "hugetlb"})) {
    read_pools(folder, "limit_in_bytes", "usage_in_bytes", limits.pools);
  }
  for (const std::string& folder : group_folders(root, {"cpu", "cpu"}))
    read_quota_v1(folder, limits);
  return limits;
}

}  // namespace lockstep
