// Plans a model's place on a machine before anything is loaded: `lockstepd plan`.
#pragma once

#include "engine/base/result.h"
#include "engine/interface/machine_plan.h"
#include "engine/interface/options.h"

namespace lockstep {

struct Machine;

// How the model would lie on this machine, what is wrong with the machine, and the speed to expect
// from its bandwidth, if that is to be measured (some seconds, and only right on an idle machine).
// Of the model only the headers are read. One that does not fit is no error: the plan says so.
Result<MachinePlan> plan_machine(const EngineOptions& options, bool measure);
// The same of a given machine.
Result<MachinePlan> plan_machine(const EngineOptions& options, const Machine& machine,
                                 bool measure);

}  // namespace lockstep
