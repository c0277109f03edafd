// The bounds of an engine's speed on this machine, measured.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "engine/interface/measurements.h"
#include "engine/machine/rank_places.h"

namespace lockstep {

// Every kind of arithmetic of an instruction set (none: of all) that this machine has, with one
// thread per entry of `cpus`; `seconds` for each figure. Fails with kMachineRefused.
Result<std::vector<MachineArithmetic>> measure_arithmetic_of(std::span<const int> cpus,
                                                             std::string_view instruction_set,
                                                             double seconds);

// With the workers of these places. Fails with kMachineRefused.
Result<MachineLimits> measure_limits_of(std::span<const RankPlace> places,
                                        std::string_view instruction_set);

}  // namespace lockstep
