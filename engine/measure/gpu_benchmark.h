// The part of measure_machine() that is about GPUs.
#pragma once

#include "engine/interface/machine_measurement.h"
#include "engine/machine/topology.h"
#include "engine/runtime/gpu/gpu_platform.h"

namespace lockstep {

// Measures each of the machine's GPUs, one after the other, and each way between two that reach one
// another. One that fails says so in its place, and the others are measured. `platform`: null where
// there are none.
void measure_gpus(const GpuPlatform* platform, const Topology& topology,
                  const MachineMeasurementOptions& options, MachineMeasurement& result);

}  // namespace lockstep
