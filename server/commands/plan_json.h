// A machine's plan as JSON: what `lockstepd plan --json` prints.
#pragma once

#include <string>

#include "engine/engine.h"

namespace lockstep {

// Indented; without a newline at its end.
std::string plan_json(const MachinePlan& plan);

}  // namespace lockstep
