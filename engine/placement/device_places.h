// Which ranks a model gets on the devices that were chosen.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/graph/split.h"
#include "engine/machine/device_choice.h"
#include "engine/machine/rank_places.h"
#include "engine/machine/topology.h"
#include "engine/placement/gpu_speeds.h"
#include "engine/placement/machine.h"
#include "engine/placement/settings.h"

namespace lockstep {

// Whether the chosen GPUs can compute this graph as these settings want it. Fails with
// kInvalidInput.
Result<void> check_gpu_use(const Graph& graph, const Settings& settings, const Machine& machine,
                           const DeviceChoice& devices);

// How the chosen GPUs sum, where that is not over one another's memory: the end of a sentence.
std::string_view sums_text(const Topology& topology, const DeviceChoice& devices);

// What each of the chosen GPUs has to keep free for NCCL, if they are to be joined by it.
// `gpus_linked`: each reaches the others' memory. `message_floats`: what ranks send one another at
// once, at most (exchanged_floats_max()).
uint64_t nccl_bytes(const Machine& machine, const DeviceChoice& devices, bool gpus_linked,
                    uint64_t message_floats);

// Whether it depends on the GPUs' speeds how these devices share: nobody has said how, and they are
// GPUs of several kinds, or GPUs and nodes.
bool shares_follow_gpu_speeds(const Settings& settings, const Topology& topology,
                              const DeviceChoice& devices);

// The ranks of the chosen devices, GPUs first, with their shares. `gpu_bytes`: what the whole model
// takes on GPUs, where some ranks are nodes' and shares follow from the room. `speeds`: the GPUs',
// where shares follow them. Fails with kInvalidInput, with kMachineRefused where nodes' bandwidth
// cannot be measured.
Result<std::vector<RankPlace>> find_places(const Settings& settings, const Machine& machine,
                                           const DeviceChoice& devices, uint64_t gpu_bytes,
                                           const std::optional<GpuSpeeds>& speeds);

// Of a mixture: what GPUs and nodes share becomes experts on the nodes, and all else on the GPUs
// (expert_placement.h).
void place_by_kind(std::vector<RankPlace>& places);

// Of a mixture's experts.
inline double expert_share_of(const RankPlace& place) {
  return place.expert_share.value_or(place.share);
}

// Of the ranks with these places.
Shares shares_of(const std::vector<RankPlace>& places);

// What each rank takes of the work by its bandwidth, in whole parts, at least 1: what is measured
// differs a little from start to start, and where the model is cut must not.
std::vector<double> shares_in_parts(const std::vector<double>& bandwidths);

}  // namespace lockstep
