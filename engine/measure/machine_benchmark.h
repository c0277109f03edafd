// Measures what this machine can do: `lockstepd bench-machine`.
#pragma once

#include "engine/base/result.h"
#include "engine/interface/machine_measurement.h"

namespace lockstep {

// Bandwidth and latency between nodes, barriers, exchanges between ranks, and a file's read rate.
// Blocks for some seconds per pair of nodes; nothing else should run. Fails with kInvalidInput for
// a file that is none, with kMachineRefused where memory or threads are refused.
Result<MachineMeasurement> measure_machine(const MachineMeasurementOptions& options);

}  // namespace lockstep
