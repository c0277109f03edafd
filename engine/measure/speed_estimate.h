// The speed that a plan expects of a layout, measured on an idle machine.
#pragma once

#include "engine/base/result.h"
#include "engine/interface/machine_plan.h"
#include "engine/model/architecture.h"
#include "engine/placement/machine.h"
#include "engine/placement/rank_choice.h"

namespace lockstep {

// Fills in the speeds of the plan's ranks, of a token, and the verdict. `plan`: of this choice,
// with its ranks. Fails with kMachineRefused where nodes cannot be measured.
Result<void> estimate_speed(const Model& model, const Machine& machine, const RankChoice& choice,
                            MachinePlan& plan);

}  // namespace lockstep
