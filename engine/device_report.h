// What `lockstepd plan` says of a machine's GPUs and of the devices that were chosen.
#pragma once

#include "engine/machine/device_choice.h"
#include "engine/machine/topology.h"
#include "engine/machine_plan.h"

namespace lockstep {

// Fills in MachinePlan::gpus, no_gpus and devices.
void describe_devices(const Topology& topology, const DeviceChoice& choice, MachinePlan& plan);

}  // namespace lockstep
