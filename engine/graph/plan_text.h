// A plan as text: to compare plans by, or to keep a digest of one.
#pragma once

#include <string>

#include "engine/graph/plan.h"

namespace lockstep {

// Everything that the plan says: its sizes, the device's areas and the weights' slices, then one
// line per step with its rows, buffers (arena+offset/stride) and sizes. Plans that differ have
// different texts, and equal ones the same.
std::string plan_text(const Plan& plan);

}  // namespace lockstep
