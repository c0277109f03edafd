// A product's share of one worker: which panels for which rows, and what follows on them.
#pragma once

#include "engine/graph/plan.h"
#include "engine/runtime/node/pass.h"

namespace lockstep {

// Few rows: every worker computes the same panels in every pass, so that a weight is always read by
// the worker that read it before. Many: panels and rows are cut into tasks that are dealt out.
void run_product(const MatmulStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
