// Runs one worker's share of one step. How work is shared never changes a result: every output
// element is computed in the kernels' fixed order, whole by one worker, or, where a long sequence's
// keys are cut into chunks, in parts that one worker merges in order.
#pragma once

#include "engine/graph/plan.h"
#include "engine/runtime/node/pass.h"

namespace lockstep {

// No allocation, lock or system call. `tasks` starts at 0, shared by the workers of the rank.
void run_step(const StepWork& step, const Pass& pass, TaskCounter& tasks);

// The exchange of a step of all ranks, by the one worker of a rank whose GPU has computed it: sums,
// and rows of which other ranks have copies. Both lie in the host's memory.
void exchange_step(const StepWork& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
