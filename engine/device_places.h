// Which ranks a model gets on the devices that were chosen.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/result.h"
#include "engine/engine.h"
#include "engine/graph/graph.h"
#include "engine/machine/device_choice.h"
#include "engine/machine/rank_places.h"
#include "engine/machine/topology.h"

namespace lockstep {

// Whether the chosen GPUs can compute this graph as these options want it. Fails with
// kInvalidInput.
Result<void> check_gpu_use(const Graph& graph, const EngineOptions& options,
                           const Topology& topology, const DeviceChoice& devices);

// The ranks of the chosen devices, GPUs first, with their shares. `gpu_bytes`: what the whole model
// takes on GPUs, where some ranks are nodes' and shares follow from the room. Fails with
// kInvalidInput, with kMachineRefused where nodes' bandwidth cannot be measured.
Result<std::vector<RankPlace>> find_places(const EngineOptions& options, const Topology& topology,
                                           const DeviceChoice& devices, uint64_t gpu_bytes);

}  // namespace lockstep
