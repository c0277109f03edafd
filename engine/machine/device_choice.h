// Which of a machine's devices get ranks: what --devices says, held against what there is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/machine/topology.h"

namespace lockstep {

// A GPU that computes nothing, though no option leaves it out.
struct IdleGpu {
  int index = 0;       // Gpu::index
  std::string reason;  // why, half a sentence
  std::string remedy;  // the options that make it compute; empty: none that is known to
};

struct DeviceChoice {
  std::vector<int> nodes;  // Node::id, ascending: whose processors and memory ranks get
  std::vector<int> gpus;   // Gpu::index, ascending: one rank on each
  bool automatic = false;  // nobody has named them
  std::string reason;      // why these, half a sentence
  std::vector<IdleGpu> idle = {};
};

// Whether this request can choose a GPU, so that they have to be looked for (add_gpus()).
bool may_choose_gpus(std::string_view request);

// `request`: "cpu" (every node), "gpu" (every GPU), "all" (both), names with commas between
// ("gpu0,gpu1,node0"), or "auto": every GPU where each has space beside `nccl_bytes` and all of
// them together for `model_bytes` (of weights, cache and activations), else every node. Fails with
// kInvalidInput for a request that is none of these or names a node that cannot have ranks, with
// kMachineRefused for a GPU that is not there, unless it can never be (Topology::gpus_possible).
Result<DeviceChoice> choose_devices(std::string_view request, const Topology& topology,
                                    uint64_t model_bytes, uint64_t nccl_bytes = 0);

// Every node, though others had been chosen or might have been.
DeviceChoice every_node(const Topology& topology, std::string reason);

// The GPUs that have memory which ranks may take, and every node; none: there is no such GPU.
std::optional<DeviceChoice> gpus_beside_nodes(const Topology& topology, std::string reason);

// Whether these (Gpu::index) can be all the ranks of a split without NCCL: each reaches the others'
// memory. Fails with kInvalidInput where one does not. `absence`: of NCCL, for the message, as
// nccl_absence().
Result<void> check_links(const Topology& topology, const std::vector<int>& gpus,
                         std::string_view absence = "without NCCL: install it");

// The GPUs (Gpu::index, ascending) of which to try fewer than all, the most first. Of as many those
// that reach one another's memory come first, and else those with the most free memory; none has no
// memory that ranks may take.
std::vector<std::vector<int>> fewer_gpus(const Topology& topology);

// The memory of a GPU that ranks may take: what is free less what the driver's context and the
// rounding of allocations take.
uint64_t usable_bytes(const Gpu& gpu);

// "gpu0, node1".
std::string device_names(const DeviceChoice& choice);

// The --devices that name them: "gpu0,node1", or "all" where these are all there are.
std::string devices_option(const Topology& topology, const DeviceChoice& choice);

// Makes all GPUs idle that are neither chosen nor idle already, for this reason; one whose memory
// others have taken, for that.
void set_idle(const Topology& topology, const std::string& reason, const std::string& remedy,
              DeviceChoice& choice);

// A sentence on each reason for which GPUs stay idle, without its end: "gpu0, gpu1 stay idle: ...;
// give --devices all to use them".
std::vector<std::string> idle_sentences(const DeviceChoice& choice);

}  // namespace lockstep
