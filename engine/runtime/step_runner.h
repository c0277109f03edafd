// Runs one worker's share of one step. How work is shared never changes a result: every output
// element is computed whole by one worker, in the kernels' fixed order.
#pragma once

#include <cstddef>

#include "engine/graph/plan.h"
#include "engine/kernels/kernel_table.h"
#include "engine/machine/barrier.h"
#include "engine/runtime/batch.h"
#include "engine/runtime/worker_counters.h"

namespace lockstep {

// One worker's view of a pass.
struct Pass {
  const Plan& plan;
  const KernelTable& kernels;
  const Batch& batch;
  Barrier& barrier;  // the rank's; for exchanges in several phases
  WorkerCounters& counters;
  size_t worker = 0;
  size_t worker_count = 1;
};

// No allocation, lock or system call.
void run_step(const StepWork& step, const Pass& pass);

}  // namespace lockstep
