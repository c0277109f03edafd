#include "engine/machine/machine_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <set>

#include "engine/machine/memory_budget.h"
#include "engine/machine/system_files.h"

namespace lockstep {
namespace {

using std::filesystem::path;

constexpr std::string_view kHugePageFolder = "sys/kernel/mm/transparent_hugepage";

std::string first_line(const path& file_path) {
  std::ifstream file(file_path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<int> read_number(const path& file_path) {
  const std::string line = first_line(file_path);
  int number = 0;
  if (std::from_chars(line.data(), line.data() + line.size(), number).ec != std::errc()) {
    return std::nullopt;
  }
  return number;
}

// The one in brackets: "always [madvise] never".
std::string read_choice(const path& file_path) {
  const std::string line = first_line(file_path);
  const size_t open = line.find('[');
  const size_t close = line.find(']', open);
  if (open == std::string::npos || close == std::string::npos) return {};
  return line.substr(open + 1, close - open - 1);
}

// Newer kernels choose per page size as well; "inherit" refers to the choice for all.
std::string read_huge_page_choice(const path& root, std::string_view name) {
  const path folder = root / kHugePageFolder;
  const std::string of_size = read_choice(folder / "hugepages-2048kB" / name);
  return of_size.empty() || of_size == "inherit" ? read_choice(folder / name) : of_size;
}

// "Max locked memory  8388608  8388608  bytes": the first number is in force.
std::optional<uint64_t> read_memlock(const path& root) {
  std::ifstream file(root / "proc/self/limits");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kKey = "Max locked memory";
    if (!line.starts_with(kKey)) continue;
    const size_t start = line.find_first_not_of(' ', kKey.size());
    uint64_t bytes = 0;
    if (start != std::string::npos &&
        std::from_chars(line.data() + start, line.data() + line.size(), bytes).ec == std::errc()) {
      return bytes;
    }
  }
  return std::nullopt;
}

std::optional<uint64_t> read_commit_left(const path& root) {
  const auto info = read_memory_info(root / "proc/meminfo");
  const auto limit = info.find("CommitLimit");
  const auto committed = info.find("Committed_AS");
  if (limit == info.end() || committed == info.end()) return std::nullopt;
  return limit->second > committed->second ? limit->second - committed->second : 0;
}

std::vector<std::string> read_governors(const path& root) {
  std::set<std::string> names;
  const path folder = root / "sys/devices/system/cpu/cpufreq";
  for (const std::string& policy : folder_names(folder)) {
    std::string name = first_line(folder / policy / "scaling_governor");
    if (!name.empty()) names.insert(std::move(name));
  }
  return {names.begin(), names.end()};
}

using Faults = std::vector<MachineFault>;

std::string list_of_nodes(const Topology& topology) {
  std::vector<int> ids;
  for (const Node& node : topology.nodes) ids.push_back(node.id);
  return write_number_list(ids);
}

// Finds what was withheld from this process by its parent.
void find_withheld(const Topology& topology, const MachineSettings& settings, Faults& faults) {
  std::map<int, size_t> usable;
  for (const Cpu& cpu : topology.cpus) ++usable[cpu.node];
  for (const Node& node : topology.nodes) {
    if (node.memory_bytes > 0 && !node.memory_allowed) {
      const std::string nodes = list_of_nodes(topology);
      faults.push_back(
          {fmt::format("node {} has {} MiB of memory that this process may not use (cpuset.mems)",
                       node.id, node.memory_bytes >> 20U),
           settings.in_container
               ? fmt::format("docker update --cpuset-mems {} CONTAINER", nodes)
               : fmt::format("systemctl set-property lockstepd.service AllowedMemoryNodes={}",
                             nodes)});
    }
    if (usable[node.id] < node.cpu_count) {
      faults.push_back(
          {fmt::format("this process may use {} of the {} processors of node {} (cpuset.cpus or "
                       "its affinity)",
                       usable[node.id], node.cpu_count, node.id),
           settings.in_container
               ? "docker update --cpuset-cpus \"$(cat /sys/devices/system/cpu/online)\" CONTAINER"
               : "systemctl set-property lockstepd.service "
                 "AllowedCPUs=\"$(cat /sys/devices/system/cpu/online)\""});
    }
  }
}

void find_short_pools(const Topology& topology, const MachineHints& hints, Faults& faults) {
  for (const MachineHints::HugePages& hint : hints.huge_pages) {
    const Node* const node = topology.find_node(hint.node);
    if (node == nullptr || hint.page_bytes == 0) continue;
    // Pages of 1 GiB that hold it are better still.
    if (pool_page_bytes(topology, {}, hint.node, hint.bytes) > hint.page_bytes) continue;
    const auto pool = std::ranges::find(node->pools, hint.page_bytes, &HugePagePool::page_bytes);
    const bool found = pool != node->pools.end();
    const uint64_t free = found ? pool->free_pages : 0;
    const uint64_t wanted = (hint.bytes + hint.page_bytes - 1) / hint.page_bytes;
    if (wanted <= free) continue;
    const uint64_t total = (found ? pool->total_pages : 0) + wanted - free;
    const uint64_t kibibytes = hint.page_bytes >> 10U;
    faults.push_back(
        {fmt::format("{} huge pages of {} KiB are free on node {}, {} are needed", free, kibibytes,
                     hint.node, wanted),
         fmt::format("echo {} > /sys/devices/system/node/node{}/hugepages/hugepages-{}kB/"
                     "nr_hugepages",
                     total, hint.node, kibibytes)});
  }
}

}  // namespace

MachineSettings read_huge_page_settings(const path& root) {
  MachineSettings settings;
  settings.transparent_huge_pages = read_huge_page_choice(root, "enabled");
  settings.shared_huge_pages = read_huge_page_choice(root, "shmem_enabled");
  return settings;
}

MachineSettings read_machine_settings(const path& root) {
  MachineSettings settings = read_huge_page_settings(root);
  settings.numa_balancing = read_number(root / "proc/sys/kernel/numa_balancing");
  settings.memlock_bytes = read_memlock(root);
  settings.governors = read_governors(root);
  settings.overcommit = read_number(root / "proc/sys/vm/overcommit_memory");
  if (settings.overcommit == 2) settings.commit_left_bytes = read_commit_left(root);
  std::error_code error;
  settings.in_container = std::filesystem::exists(root / ".dockerenv", error) ||
                          std::filesystem::exists(root / "run/.containerenv", error);
  return settings;
}

bool gives_huge_pages(const MachineSettings& settings) {
  return settings.transparent_huge_pages == "always" ||
         settings.transparent_huge_pages == "madvise";
}

bool gives_shared_huge_pages(const MachineSettings& settings) {
  const std::string& choice = settings.shared_huge_pages;
  return choice == "always" || choice == "within_size" || choice == "advise" || choice == "force";
}

std::vector<MachineFault> find_machine_faults(const Topology& topology,
                                              const MachineSettings& settings,
                                              const MachineHints& hints) {
  Faults faults;
  find_withheld(topology, settings, faults);
  if (settings.commit_left_bytes && *settings.commit_left_bytes < hints.mapped_bytes) {
    faults.push_back(
        {fmt::format("vm.overcommit_memory is 2 and lets {} MiB more be mapped, {} are needed",
                     *settings.commit_left_bytes >> 20U, hints.mapped_bytes >> 20U),
         "sysctl -w vm.overcommit_memory=0"});
  }
  if (settings.transparent_huge_pages == "never") {
    faults.push_back(
        {"transparent huge pages are switched off (never), so memory that is not of a "
         "huge-page pool comes in pages of 4 KiB",
         "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"});
  }
  find_short_pools(topology, hints, faults);
  if (topology.nodes.size() > 1 && settings.numa_balancing.value_or(0) != 0) {
    faults.push_back({fmt::format("kernel.numa_balancing is {}: the kernel unmaps pages again and "
                                  "again to see who touches them, which stops workers",
                                  *settings.numa_balancing),
                      "sysctl -w kernel.numa_balancing=0"});
  }
  if (settings.memlock_bytes && *settings.memlock_bytes < hints.locked_bytes) {
    faults.push_back(
        {fmt::format("this process may lock {} KiB of memory, {} KiB of read buffers are to be "
                     "registered with io_uring",
                     *settings.memlock_bytes >> 10U, hints.locked_bytes >> 10U),
         settings.in_container ? "docker run --ulimit memlock=-1 ..."
                               : "ulimit -l unlimited (in a service: LimitMEMLOCK=infinity)"});
  }
  if (std::ranges::any_of(settings.governors, [](const auto& it) { return it != "performance"; })) {
    faults.push_back({fmt::format("processors are run at varying frequencies (governor {})",
                                  fmt::join(settings.governors, ", ")),
                      "echo performance | tee "
                      "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor"});
  }
  return faults;
}

}  // namespace lockstep
