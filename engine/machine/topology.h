// What the machine is made of, as a value: tests make one up.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace lockstep {

struct Cpu {
  int id = 0;       // the number the kernel knows it by
  int package = 0;  // socket
  int core = 0;     // physical core within the package; siblings share it
};

struct Topology {
  std::vector<Cpu> cpus;  // those this process may use, by id
};

// Reads the processors this process may run on. `sysfs` is /sys, or a copy of its shape. A
// processor of which the tree says nothing counts as a core of its own.
Topology read_topology(const std::filesystem::path& sysfs = "/sys");

// The same for a given set of processors.
Topology read_topology(const std::filesystem::path& sysfs, const std::vector<int>& allowed);

// One processor of every physical core, in order of id: where workers are pinned.
std::vector<int> one_cpu_per_core(const Topology& topology);

}  // namespace lockstep
