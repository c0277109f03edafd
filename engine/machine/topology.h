// The machine's parts and which of them this process may use, as a value: tests construct one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/machine/gpu.h"

namespace lockstep {

struct Cpu {
  int id = 0;       // the number the kernel knows it by
  int package = 0;  // socket
  int core = 0;     // physical core; siblings share package and core, and nobody else does
  int node = 0;     // Node::id
  // The lowest of all processors that share its cache of level 3; none: the machine does not say.
  std::optional<int> cache = {};
};

// Pages of one size that are set aside on a node (hugetlb).
struct HugePagePool {
  uint64_t page_bytes = 0;
  uint64_t total_pages = 0;
  uint64_t free_pages = 0;
};

struct Node {
  int id = 0;                       // the number the kernel knows it by; numbers may be missing
  uint64_t memory_bytes = 0;        // 0: a node without memory
  uint64_t free_bytes = 0;          // with what the kernel gives back when asked; without the pools
  bool memory_allowed = true;       // this process may take its memory (cpuset.mems)
  size_t cpu_count = 0;             // online, those that this process may not use included
  std::vector<int> distances;       // to each of Topology::nodes; 10 to itself
  std::vector<HugePagePool> pools;  // by page size, smallest first

  bool has_usable_memory() const { return memory_bytes > 0 && memory_allowed; }
};

struct Topology {
  std::vector<Cpu> cpus;    // online ones that this process may use, by id
  std::vector<Node> nodes;  // online ones, by id; at least one
  std::vector<Gpu> gpus;    // by index; read_topology() leaves them out, add_gpus() reads them
  std::string no_gpus = "they were not looked for";  // why `gpus` is empty, where it is
  bool gpus_possible = true;                         // false: nor will there be any (GpuReading)

  // Null when there is no such node.
  const Node* find_node(int id) const;
  // By Gpu::index, which need not be its place in `gpus`; null when there is no such GPU.
  const Gpu* find_gpu(int index) const;
  // The distance of a node to another, by their indices in `nodes`.
  int distance(size_t from, size_t to) const { return nodes[from].distances[to]; }
};

// Reads what this process may use. `sysfs` is /sys, or a copy of its shape (proc/meminfo may lie
// beside it, as /proc does). A processor of which the tree says nothing counts as a core of its
// own; a machine that says nothing of nodes is one node 0 that has everything.
Topology read_topology(const std::filesystem::path& sysfs = "/sys");

// The same for a given set of processors, and of nodes whose memory may be taken.
Topology read_topology(const std::filesystem::path& sysfs, const std::vector<int>& allowed);
Topology read_topology(const std::filesystem::path& sysfs, const std::vector<int>& allowed_cpus,
                       const std::vector<int>& allowed_memory_nodes);

// The GPU of this Gpu::index; CHECKs that there is one.
const Gpu& gpu_at(const Topology& topology, int index);

// Asks for the GPUs, once per machine: with a driver, the first time takes a moment.
void add_gpus(Topology& topology, const std::filesystem::path& sysfs = "/sys");

// Cpu::cache of each of these processors; none if one of them has none.
std::vector<int> caches_of(const Topology& topology, std::span<const int> cpus);

// One processor of every physical core, in order of id: where workers are pinned.
std::vector<int> one_cpu_per_core(const Topology& topology);

}  // namespace lockstep
