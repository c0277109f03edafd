#include "engine/machine/topology.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/machine/system_files.h"

namespace lockstep {
namespace {

using std::filesystem::path;

// The firmware's own words for "here" and "elsewhere", used where the kernel has no table.
constexpr int kLocalDistance = 10;
constexpr int kRemoteDistance = 20;

template <typename T>
std::optional<T> read_number(const path& file_path) {
  std::ifstream file(file_path);
  T number{};
  if (file >> number) return number;
  return std::nullopt;
}

void read_memory(const path& meminfo, Node& node) {
  const auto info = read_memory_info(meminfo);
  const auto bytes = [&](std::string_view key) {
    const auto found = info.find(key);
    return found == info.end() ? 0 : found->second;
  };
  node.memory_bytes = bytes("MemTotal");
  // File pages give way to others. Pages of a tmpfs, which do not, are not on these lists; of the
  // kernel's own reclaimable memory about half is in use.
  node.free_bytes = bytes("MemFree") + bytes("Active(file)") + bytes("Inactive(file)") +
                    bytes("SReclaimable") / 2;
  node.free_bytes = std::min(node.free_bytes, node.memory_bytes);
}

// `folder` holds one folder per page size: hugepages-2048kB.
std::vector<HugePagePool> read_pools(const path& folder) {
  constexpr std::string_view kPrefix = "hugepages-";
  std::vector<HugePagePool> pools;
  for (const std::string& name : folder_names(folder)) {
    if (!name.starts_with(kPrefix)) continue;
    HugePagePool pool;
    const char* const end = name.data() + name.size();
    if (std::from_chars(name.data() + kPrefix.size(), end, pool.page_bytes).ec != std::errc()) {
      continue;
    }
    pool.page_bytes *= 1024;
    pool.total_pages = read_number<uint64_t>(folder / name / "nr_hugepages").value_or(0);
    pool.free_pages = read_number<uint64_t>(folder / name / "free_hugepages").value_or(0);
    pools.push_back(pool);
  }
  std::ranges::sort(pools, {}, &HugePagePool::page_bytes);
  return pools;
}

std::vector<int> read_node_ids(const path& folder) {
  if (auto online = read_number_list(folder / "online"); online && !online->empty()) {
    std::ranges::sort(*online);
    return *online;
  }
  std::vector<int> ids;
  for (const std::string& name : folder_names(folder)) {
    if (!name.starts_with("node")) continue;
    const auto id = parse_number_list(std::string_view(name).substr(4));
    if (id && id->size() == 1) ids.push_back(id->front());
  }
  std::ranges::sort(ids);
  return ids;
}

// A table that is missing, or not of this many nodes, is replaced by defaults.
std::vector<int> read_distances(const path& file_path, size_t self, size_t count) {
  std::vector<int> distances;
  std::ifstream file(file_path);
  for (int distance = 0; file >> distance;) distances.push_back(distance);
  if (distances.size() == count) return distances;
  distances.assign(count, kRemoteDistance);
  distances[self] = kLocalDistance;
  return distances;
}

// None: no list, so every processor that may be used is online.
std::optional<std::set<int>> online_cpus(const path& sysfs) {
  const auto list = read_number_list(sysfs / "devices/system/cpu/online");
  if (!list) return std::nullopt;
  return std::set<int>(list->begin(), list->end());
}

// `folder` holds one folder per cache that the processor uses: index0 and so on.
std::optional<int> read_cache(const path& folder, int id) {
  constexpr int kLevel = 3;
  for (const std::string& name : folder_names(folder)) {
    if (read_number<int>(folder / name / "level") != kLevel) continue;
    const auto sharing = read_number_list(folder / name / "shared_cpu_list");
    if (!sharing || std::ranges::find(*sharing, id) == sharing->end()) continue;
    return std::ranges::min(*sharing);
  }
  return std::nullopt;
}

Cpu read_cpu(const path& sysfs, int id) {
  const path cpu_folder = sysfs / "devices/system/cpu" / ("cpu" + std::to_string(id));
  const path folder = cpu_folder / "topology";
  Cpu cpu;
  cpu.id = id;
  cpu.package = read_number<int>(folder / "physical_package_id").value_or(0);
  // Core numbers may repeat in a package of several dies; the list of siblings says it exactly.
  auto siblings = read_number_list(folder / "core_cpus_list");
  if (!siblings) siblings = read_number_list(folder / "thread_siblings_list");
  if (siblings && std::ranges::find(*siblings, id) != siblings->end()) {
    cpu.core = std::ranges::min(*siblings);
  } else {
    // Below any core number the kernel gives, and different for every processor.
    cpu.core = read_number<int>(folder / "core_id").value_or(-1 - id);
  }
  cpu.cache = read_cache(cpu_folder / "cache", id);
  return cpu;
}

// Fills in the nodes and returns the node of every processor that is on one.
std::map<int, int> read_nodes(const path& sysfs, const std::optional<std::set<int>>& online,
                              Topology& topology) {
  std::map<int, int> node_of;
  const path folder = sysfs / "devices/system/node";
  const std::vector<int> ids = read_node_ids(folder);
  for (size_t i = 0; i < ids.size(); ++i) {
    const path below = folder / ("node" + std::to_string(ids[i]));
    Node node;
    node.id = ids[i];
    read_memory(below / "meminfo", node);
    node.pools = read_pools(below / "hugepages");
    node.distances = read_distances(below / "distance", i, ids.size());
    for (const int cpu : read_number_list(below / "cpulist").value_or(std::vector<int>())) {
      if (online && !online->contains(cpu)) continue;
      node_of[cpu] = node.id;
      ++node.cpu_count;
    }
    topology.nodes.push_back(std::move(node));
  }
  return node_of;
}

Node whole_machine(const path& sysfs, size_t cpu_count) {
  Node node;
  read_memory(sysfs.parent_path() / "proc/meminfo", node);
  node.pools = read_pools(sysfs / "kernel/mm/hugepages");
  node.distances = {kLocalDistance};
  node.cpu_count = cpu_count;
  if (node.memory_bytes == 0) {
    const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    node.memory_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes;
    node.free_bytes = static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) * page_bytes;
  }
  return node;
}

// Nodes whose memory this process may take; none: no limit is known.
std::optional<std::vector<int>> allowed_memory_nodes_of_process() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kKey = "Mems_allowed_list:";
    if (line.starts_with(kKey)) return parse_number_list(line.substr(kKey.size()));
  }
  return std::nullopt;
}

Topology read(const path& sysfs, const std::vector<int>& allowed,
              const std::optional<std::vector<int>>& allowed_memory_nodes) {
  Topology topology;
  const auto online = online_cpus(sysfs);
  const auto node_of = read_nodes(sysfs, online, topology);
  for (const int id : std::set<int>(allowed.begin(), allowed.end())) {
    if (online && !online->contains(id)) continue;
    topology.cpus.push_back(read_cpu(sysfs, id));
  }
  if (topology.nodes.empty()) {
    const size_t count = online ? online->size() : topology.cpus.size();
    topology.nodes.push_back(whole_machine(sysfs, count));
  } else if (allowed_memory_nodes) {
    for (Node& node : topology.nodes) {
      node.memory_allowed =
          std::ranges::find(*allowed_memory_nodes, node.id) != allowed_memory_nodes->end();
    }
  }
  for (Cpu& cpu : topology.cpus) {
    const auto found = node_of.find(cpu.id);
    cpu.node = found != node_of.end() ? found->second : topology.nodes.front().id;
  }
  return topology;
}

}  // namespace

const Node* Topology::find_node(int id) const {
  const auto found = std::ranges::find(nodes, id, &Node::id);
  return found == nodes.end() ? nullptr : &*found;
}

const Gpu* Topology::find_gpu(int index) const {
  const auto found = std::ranges::find(gpus, index, &Gpu::index);
  return found == gpus.end() ? nullptr : &*found;
}

const Gpu& gpu_at(const Topology& topology, int index) {
  const Gpu* const gpu = topology.find_gpu(index);
  CHECK(gpu != nullptr, "no gpu{} in this machine", index);
  return *gpu;
}

Topology read_topology(const std::filesystem::path& sysfs) {
  // Machines with more than 1024 processors need a larger set than cpu_set_t.
  constexpr int kMostCpus = 8192;
  cpu_set_t* set = CPU_ALLOC(kMostCpus);
  const size_t set_bytes = CPU_ALLOC_SIZE(kMostCpus);
  CPU_ZERO_S(set_bytes, set);
  std::vector<int> allowed;
  if (sched_getaffinity(0, set_bytes, set) == 0) {
    for (int cpu = 0; cpu < kMostCpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), set_bytes, set)) allowed.push_back(cpu);
    }
  }
  CPU_FREE(set);
  return read(sysfs, allowed, allowed_memory_nodes_of_process());
}

Topology read_topology(const std::filesystem::path& sysfs, const std::vector<int>& allowed) {
  return read(sysfs, allowed, std::nullopt);
}

Topology read_topology(const std::filesystem::path& sysfs, const std::vector<int>& allowed_cpus,
                       const std::vector<int>& allowed_memory_nodes) {
  return read(sysfs, allowed_cpus, allowed_memory_nodes);
}

void add_gpus(Topology& topology, const std::filesystem::path& sysfs) {
  GpuReading reading = read_gpus(sysfs);
  topology.gpus = std::move(reading.gpus);
  topology.no_gpus = std::move(reading.absence);
  topology.gpus_possible = reading.possible;
}

std::vector<int> caches_of(const Topology& topology, std::span<const int> cpus) {
  std::vector<int> caches;
  for (const int id : cpus) {
    const auto found = std::ranges::find(topology.cpus, id, &Cpu::id);
    if (found == topology.cpus.end() || !found->cache) return {};
    caches.push_back(*found->cache);
  }
  return caches;
}

std::vector<int> one_cpu_per_core(const Topology& topology) {
  std::set<std::pair<int, int>> seen;
  std::vector<int> result;
  for (const Cpu& cpu : topology.cpus) {
    if (seen.emplace(cpu.package, cpu.core).second) result.push_back(cpu.id);
  }
  return result;
}

}  // namespace lockstep
