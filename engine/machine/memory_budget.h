// The memory budget of arenas, before any is taken: what NodeMemory would do, on paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>

#include "engine/machine/control_group.h"
#include "engine/machine/topology.h"

namespace lockstep {

// The memory that the process can take on all nodes together.
struct MemoryLimits {
  uint64_t available_bytes = 0;  // of memory that is not of a pool
  PoolLimits pools = {};
};

// Reads the limits of the system and of the process's control groups.
MemoryLimits read_memory_limits();

// The memory that this process can still take: the least of the system's available memory and what
// its control groups leave. Pages of the huge-page pools are not counted. `root` is / or a copy of
// its shape.
uint64_t available_memory_bytes(const std::filesystem::path& root = "/");

// The same for memory bound to one node: it cannot spill over to others. 0 for no such node.
uint64_t available_memory_bytes_on_node(int node, const std::filesystem::path& root = "/");

// Bytes free in a node's huge-page pools, of all sizes.
uint64_t free_huge_page_bytes_on_node(int node, const std::filesystem::path& root = "/");

// Free pages of this size on a node (-1: on all), as far as the limits let them be reserved.
uint64_t free_pool_bytes(const Topology& topology, const PoolLimits& limits, int node,
                         uint64_t page_bytes);

// The page size of the pool that an arena on a node (-1: any) would be taken from; 0: of none. The
// first that fits.
uint64_t pool_page_bytes(const Topology& topology, const PoolLimits& limits, int node,
                         uint64_t bytes);

class MemoryBudget {
 public:
  MemoryBudget(const Topology& topology, const MemoryLimits& limits);

  // Takes the budget of an arena on a node (-1: on any), as NodeMemory would: wholly of a pool that
  // holds it, else wholly of other memory. False when there is none; nothing is taken then.
  bool take(int node, uint64_t bytes);

  // The memory left on a node (-1: in all) that is not of a pool, and in its pools of pages
  // of 2 MiB and of 1 GiB.
  uint64_t free_bytes(int node) const;
  uint64_t pool_bytes(int node) const;
  uint64_t giga_pool_bytes(int node) const;

 private:
  struct NodeBudget {
    uint64_t free = 0;
    uint64_t pool_2mib = 0;
    uint64_t pool_1gib = 0;
  };
  bool take_from(NodeBudget& budget, uint64_t bytes);

  std::map<int, NodeBudget> nodes_;
  MemoryLimits limits_;  // what is left of them
};

}  // namespace lockstep
