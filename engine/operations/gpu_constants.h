// Numbers of a plan's steps that a GPU's kernels read from its memory.
#pragma once

#include <vector>

#include "engine/operations/plan.h"

namespace lockstep {

// Those of a step: the slopes of its query heads, or the scales of the matrices of its experts,
// part after part, of those parts that have any. None: empty.
std::vector<float> gpu_constants(const StepWork& step);

// All steps', in order, as GpuAreas::constants has them.
std::vector<float> gpu_constants(const Plan& plan);

}  // namespace lockstep
