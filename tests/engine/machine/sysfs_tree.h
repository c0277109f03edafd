// A tree of sysfs and proc files in a temporary folder, from a short description of a machine, and
// the machines that tests loop over.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/machine/system_files.h"
#include "engine/machine/topology.h"

namespace lockstep {

struct NodeFiles {
  int id = 0;
  std::string cpus = {};       // online ones
  uint64_t memory_mib = 4096;  // 0: a node without memory
  std::string distances = {};  // empty: no such file
  uint64_t pool_pages = 0;     // of 2 MiB; half of them are free
};

struct CpuFiles {
  int package = 0;
  int core = 0;
  std::string siblings = {};  // empty: no such file
  std::string cache = {};     // the processors that share its cache of level 3; empty: none
};

struct MachineFiles {
  std::string online_cpus = {};  // empty: no such file
  std::map<int, CpuFiles> cpus = {};
  std::vector<NodeFiles> nodes = {};  // empty: a kernel that knows no nodes
};

class SysfsTree {
 public:
  explicit SysfsTree(const std::string& name = "machine")
      : root_(folder() / ("lockstep-" + name + "-" + std::to_string(getpid()))) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_ / "sys");
  }
  ~SysfsTree() { std::filesystem::remove_all(root_); }
  SysfsTree(const SysfsTree&) = delete;
  SysfsTree& operator=(const SysfsTree&) = delete;

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path sysfs() const { return root_ / "sys"; }

  void write(const std::filesystem::path& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text << '\n';
  }

  void write(const MachineFiles& machine) const {
    if (!machine.online_cpus.empty()) {
      write("sys/devices/system/cpu/online", machine.online_cpus);
    }
    for (const auto& [id, cpu] : machine.cpus) write_cpu(id, cpu);
    std::vector<int> ids;
    for (const NodeFiles& node : machine.nodes) {
      write_node(node);
      ids.push_back(node.id);
    }
    if (!ids.empty()) write("sys/devices/system/node/online", write_number_list(ids));
  }

 private:
  // In memory where that can be: hundreds of small files are slow on a disk that others use.
  static std::filesystem::path folder() {
    return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ::testing::TempDir();
  }

  void write_cpu(int id, const CpuFiles& cpu) const {
    const std::string folder = "sys/devices/system/cpu/cpu" + std::to_string(id) + "/topology/";
    write(folder + "physical_package_id", std::to_string(cpu.package));
    write(folder + "core_id", std::to_string(cpu.core));
    if (!cpu.siblings.empty()) write(folder + "core_cpus_list", cpu.siblings);
    if (!cpu.cache.empty()) write_caches(id, cpu.cache);
  }

  // The caches of levels 1 (data and instructions), 2 and 3.
  void write_caches(int id, const std::string& sharing_last) const {
    const std::string own = std::to_string(id);
    const std::pair<const char*, std::string> caches[] = {
        {"1", own}, {"1", own}, {"2", own}, {"3", sharing_last}};
    int index = 0;
    for (const auto& [level, sharing] : caches) {
      const std::string folder =
          "sys/devices/system/cpu/cpu" + own + "/cache/index" + std::to_string(index++) + "/";
      write(folder + "level", level);
      write(folder + "shared_cpu_list", sharing);
    }
  }

  void write_node(const NodeFiles& node) const {
    const std::string number = std::to_string(node.id);
    const std::string folder = "sys/devices/system/node/node" + number + "/";
    const uint64_t kib = node.memory_mib * 1024;
    const std::string line = "Node " + number + " ";
    write(folder + "meminfo", line + "MemTotal:       " + std::to_string(kib) + " kB\n" + line +
                                  "MemFree:        " + std::to_string(kib / 2) + " kB\n" + line +
                                  "Active(file):   " + std::to_string(kib / 8) + " kB\n" + line +
                                  "Inactive(file): " + std::to_string(kib / 8) + " kB\n" + line +
                                  "SReclaimable:   " + std::to_string(kib / 8) + " kB\n" + line +
                                  "HugePages_Total:     " + std::to_string(node.pool_pages));
    write(folder + "cpulist", node.cpus);
    if (!node.distances.empty()) write(folder + "distance", node.distances);
    const std::string pool = folder + "hugepages/hugepages-2048kB/";
    write(pool + "nr_hugepages", std::to_string(node.pool_pages));
    write(pool + "free_hugepages", std::to_string(node.pool_pages / 2));
    write(folder + "hugepages/hugepages-1048576kB/nr_hugepages", "0");
    write(folder + "hugepages/hugepages-1048576kB/free_hugepages", "0");
  }

  std::filesystem::path root_;
};

// One thread per core, `cores_per_package` of them in a package.
inline std::map<int, CpuFiles> plain_cpus(int count, int cores_per_package) {
  std::map<int, CpuFiles> cpus;
  for (int id = 0; id < count; ++id) {
    cpus[id] = {.package = id / cores_per_package, .core = id % cores_per_package};
  }
  return cpus;
}

// Two threads per core; the second ones are numbered after all first ones.
inline std::map<int, CpuFiles> threaded_cpus(int cores, int cores_per_package) {
  std::map<int, CpuFiles> cpus;
  for (int id = 0; id < 2 * cores; ++id) {
    const int core = id % cores;
    cpus[id] = {.package = core / cores_per_package,
                .core = core % cores_per_package,
                .siblings = std::to_string(core) + "," + std::to_string(core + cores)};
  }
  return cpus;
}

// One node whose processors share caches of level 3 in this manner: of these sizes, in order.
inline MachineFiles machine_of_caches(const std::vector<int>& sizes) {
  MachineFiles machine;
  int first = 0;
  for (const int size : sizes) {
    const std::string sharing = std::to_string(first) + "-" + std::to_string(first + size - 1);
    for (int id = first; id < first + size; ++id) {
      machine.cpus[id] = {.package = 0, .core = id, .cache = sharing};
    }
    first += size;
  }
  machine.online_cpus = "0-" + std::to_string(first - 1);
  machine.nodes = {{.id = 0, .cpus = machine.online_cpus, .distances = "10"}};
  return machine;
}

inline MachineFiles one_node_machine() {
  return {.online_cpus = "0-3",
          .cpus = plain_cpus(4, 4),
          .nodes = {{.id = 0, .cpus = "0-3", .distances = "10"}}};
}

inline MachineFiles two_socket_machine() {
  return {.online_cpus = "0-15",
          .cpus = threaded_cpus(8, 4),
          .nodes = {{.id = 0, .cpus = "0-3,8-11", .distances = "10 21", .pool_pages = 512},
                    {.id = 1, .cpus = "4-7,12-15", .distances = "21 10", .pool_pages = 256}}};
}

// Two sockets of four sub-nodes with two cores each.
inline MachineFiles sub_node_machine() {
  MachineFiles machine{.online_cpus = "0-15", .cpus = plain_cpus(16, 8)};
  for (int node = 0; node < 8; ++node) {
    NodeFiles files{.id = node};
    files.cpus = std::to_string(2 * node) + "-" + std::to_string(2 * node + 1);
    for (int other = 0; other < 8; ++other) {
      files.distances += other == node ? "10 " : other / 4 == node / 4 ? "12 " : "32 ";
    }
    machine.nodes.push_back(files);
  }
  return machine;
}

// Node 1 has processors only, node 2 memory only; node numbers have a gap.
inline MachineFiles lopsided_machine() {
  return {.online_cpus = "0-5",
          .cpus = plain_cpus(6, 2),
          .nodes = {{.id = 0, .cpus = "0-1", .distances = "10 30 21 40"},
                    {.id = 1, .cpus = "2-3", .memory_mib = 0, .distances = "30 10 40 15"},
                    {.id = 2, .cpus = "", .distances = "21 40 10 30"},
                    {.id = 7, .cpus = "4-5", .distances = "40 15 30 10"}}};
}

// Eight nodes as in machines glued together from pairs of boards: near, one link, two links.
inline MachineFiles eight_node_machine() {
  MachineFiles machine{.online_cpus = "0-31", .cpus = plain_cpus(32, 4)};
  const char* const distances[8] = {"10 16 19 16 50 51 50 51", "16 10 16 19 51 50 51 50",
                                    "19 16 10 16 50 51 50 51", "16 19 16 10 51 50 51 50",
                                    "50 51 50 51 10 16 19 16", "51 50 51 50 16 10 16 19",
                                    "50 51 50 51 19 16 10 16", "51 50 51 50 16 19 16 10"};
  for (int node = 0; node < 8; ++node) {
    machine.nodes.push_back({.id = node,
                             .cpus = std::to_string(4 * node) + "-" + std::to_string(4 * node + 3),
                             .distances = distances[node]});
  }
  return machine;
}

struct NamedTopology {
  std::string name;
  Topology topology;
};

inline Topology topology_of(const MachineFiles& machine, const std::string& allowed_cpus,
                            const std::string& allowed_nodes) {
  const SysfsTree tree("topology");
  tree.write(machine);
  return read_topology(tree.sysfs(), parse_number_list(allowed_cpus).value(),
                       parse_number_list(allowed_nodes).value());
}

// The machines above, some of them under limits.
inline std::vector<NamedTopology> simulated_topologies() {
  MachineFiles no_nodes = one_node_machine();
  no_nodes.nodes.clear();
  MachineFiles some_offline = two_socket_machine();
  some_offline.online_cpus = "0-2,4-15";
  return {{"one node", topology_of(one_node_machine(), "0-3", "0")},
          {"no nodes in sysfs", topology_of(no_nodes, "0-3", "0")},
          {"one processor", topology_of(one_node_machine(), "2", "0")},
          {"two sockets", topology_of(two_socket_machine(), "0-15", "0-1")},
          {"processors offline", topology_of(some_offline, "0-15", "0-1")},
          {"a cpuset across nodes", topology_of(two_socket_machine(), "2-5,12", "0-1")},
          {"memory of node 1 only", topology_of(two_socket_machine(), "0-15", "1")},
          {"sub-nodes", topology_of(sub_node_machine(), "0-15", "0-7")},
          {"half of the sub-nodes", topology_of(sub_node_machine(), "8-15", "4-7")},
          {"processors and memory apart", topology_of(lopsided_machine(), "0-5", "0,2,7")},
          {"eight nodes", topology_of(eight_node_machine(), "0-31", "0-7")}};
}

}  // namespace lockstep
