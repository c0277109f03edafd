// Whether kernels that follow one another on a stream of a GPU may overlap
// (cuda/launch_overlap.h). In builds with CUDA alone.
#pragma once

namespace lockstep {

// One answer for all of the process's launches, which have no other way to be told. True until it
// is set, which is before the first launch. Any thread.
bool launches_may_overlap();
void let_launches_overlap(bool wanted);

}  // namespace lockstep
