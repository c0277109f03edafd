// Runs one worker's share of one step. How work is shared never changes a result: every output
// element is computed whole by one worker, in the kernels' fixed order.
#pragma once

#include "engine/graph/plan.h"
#include "engine/runtime/pass.h"

namespace lockstep {

// No allocation, lock or system call. `tasks` starts at 0, shared by the workers of the rank.
void run_step(const StepWork& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
