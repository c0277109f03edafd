// Which ranks a machine gets: the node or the GPU of each, the processors its workers run on, and
// the share of the work it takes.
#pragma once

#include <cstddef>
#include <optional>
#include <variant>
#include <vector>

#include "engine/base/result.h"
#include "engine/machine/topology.h"

namespace lockstep {

// The processors compute, in their node's memory.
struct NodePlace {
  bool operator==(const NodePlace&) const = default;
};

// A GPU computes, in its own memory.
struct GpuPlace {
  int index = 0;  // Gpu::index
  bool operator==(const GpuPlace&) const = default;
};

// The host's part of a rank, and the device that computes it.
struct RankPlace {
  int node = -1;                     // its memory of the host; -1: the machine does not say
  std::vector<int> cpus;             // one per worker; -1: the worker is not pinned to one
  std::vector<int> processors = {};  // that workers may run on which are not pinned; none: any
  std::vector<int> caches = {};      // one per worker (Cpu::cache); none: unknown, or not pinned
  double share = 1;                  // of the work, against the other ranks'
  // The share of a mixture's experts, if that is another.
  std::optional<double> expert_share = {};
  std::variant<NodePlace, GpuPlace> device = {};
};

struct RankRequest {
  // Node::id of those whose processors and memory ranks may have; none: every node.
  std::optional<std::vector<int>> nodes = {};
  size_t rank_count = 0;       // kRanksMax at most; 0: one per node with processors and memory
  std::vector<double> shares;  // one per rank; none: as many as the rank has workers
  size_t worker_count = 0;     // of each rank; 0: one per physical core
  // Physical cores of the machine that no worker runs on; none: 1 on a machine of 8 cores or more,
  // else 0.
  std::optional<size_t> reserved_cores;
  // Processors' worth of time that the control groups leave. If that is less than there are cores,
  // and no number of workers is given, none is pinned.
  std::optional<double> cpu_limit;
};

// More ranks than nodes: nodes are divided, and shared where they have too few cores. Fewer: a rank
// takes several nodes' processors and its memory lies on the first. Fails with kInvalidInput for a
// request that contradicts itself, with kMachineRefused when there is no processor.
Result<std::vector<RankPlace>> place_ranks(const Topology& topology, const RankRequest& request);

// One rank on each of these GPUs (Gpu::index), with one worker that drives it: on a processor of
// the GPU's node, each on another while there are some; not pinned where the machine does not say
// which. The rank's memory of the host is the node's. `shares`: one per GPU; none: even ones.
// How fast the GPUs are is nothing that this layer knows. Fails with kInvalidInput for shares
// that are not.
Result<std::vector<RankPlace>> place_gpu_ranks(const Topology& topology,
                                               const std::vector<int>& gpus,
                                               const std::vector<double>& shares);

// Gives the places these shares; none: they keep their own. Fails with kInvalidInput where there
// are not as many, or one is no number above 0.
Result<void> set_shares(const std::vector<double>& shares, std::vector<RankPlace>& places);

// The machine without the physical cores of these processors: others have them.
Topology without_cores(Topology topology, const std::vector<int>& cpus);

}  // namespace lockstep
