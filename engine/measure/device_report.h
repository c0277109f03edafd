// What `lockstepd plan` says of a machine's GPUs and of the devices that were chosen.
#pragma once

#include "engine/interface/machine_plan.h"
#include "engine/machine/device_choice.h"
#include "engine/machine/topology.h"

namespace lockstep {

// Fills in MachinePlan::gpus, no_gpus and devices.
void describe_devices(const Topology& topology, const DeviceChoice& choice, MachinePlan& plan);

}  // namespace lockstep
