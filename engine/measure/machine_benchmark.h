// Measures what this machine can do: `lockstepd bench-machine`, and the bounds of an engine's
// speed.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/interface/machine_measurement.h"
#include "engine/interface/measurements.h"

namespace lockstep {

struct GpuPlatform;
struct RankPlace;
struct Topology;

// Bandwidth and latency between nodes, barriers, exchanges between ranks, and a file's read rate.
// Blocks for some seconds per pair of nodes; nothing else should run. Fails with kInvalidInput for
// a file that is none, with kMachineRefused where memory or threads are refused.
Result<MachineMeasurement> measure_machine(const MachineMeasurementOptions& options);

// Measures each of the machine's GPUs, one after the other, and each way between two that reach one
// another. One that fails says so in its place, and the others are measured. `platform`: null where
// there are none.
void measure_gpus(const GpuPlatform* platform, const Topology& topology,
                  const MachineMeasurementOptions& options, MachineMeasurement& result);

// Every kind of arithmetic of an instruction set (none: of all) that this machine has, with one
// thread per entry of `cpus`; `seconds` for each figure. Fails with kMachineRefused.
Result<std::vector<MachineArithmetic>> measure_arithmetic_of(std::span<const int> cpus,
                                                             std::string_view instruction_set,
                                                             double seconds);

// With the workers of these places. Fails with kMachineRefused.
Result<MachineLimits> measure_limits_of(std::span<const RankPlace> places,
                                        std::string_view instruction_set);

}  // namespace lockstep
