#include "engine/machine/topology.h"

#include <sched.h>

#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace lockstep {
namespace {

std::optional<int> read_number(const std::filesystem::path& path) {
  std::ifstream file(path);
  int number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

}  // namespace

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
  return read_topology(sysfs, allowed);
}

Topology read_topology(const std::filesystem::path& sysfs, const std::vector<int>& allowed) {
  Topology topology;
  for (const int id : allowed) {
    const auto folder = sysfs / "devices/system/cpu" / ("cpu" + std::to_string(id)) / "topology";
    Cpu cpu;
    cpu.id = id;
    cpu.package = read_number(folder / "physical_package_id").value_or(0);
    // Below any core number the kernel gives, and different for every processor.
    cpu.core = read_number(folder / "core_id").value_or(-1 - id);
    topology.cpus.push_back(cpu);
  }
  return topology;
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
