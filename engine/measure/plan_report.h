// The words of `lockstepd plan` for a model that is placed: pure functions of what placement has
// decided.
#pragma once

#include <string>

#include "engine/interface/machine_plan.h"
#include "engine/interface/model_info.h"
#include "engine/machine/device_choice.h"
#include "engine/machine/topology.h"
#include "engine/model/architecture.h"
#include "engine/placement/machine.h"
#include "engine/placement/rank_choice.h"

namespace lockstep {

// The plan of a layout that has been sized, but for its speed. `misfit`: why it finds no space;
// empty where it does.
MachinePlan describe_plan(const Model& model, const ModelInfo& info, const Machine& machine,
                          const RankChoice& choice, const std::string& misfit);

// Fills in MachinePlan::gpus, no_gpus and devices.
void describe_devices(const Topology& topology, const DeviceChoice& choice, MachinePlan& plan);

}  // namespace lockstep
