// The planning of a norm that is a factor of products.
#pragma once

#include "engine/graph/graph.h"
#include "engine/graph/step_buffers.h"

namespace lockstep {

class RankPlanner;

// Places what the norm makes of its residual's own columns, behind a step that has computed them.
NormOutput place_norm(RankPlanner& planner, const GraphNode& norm);

}  // namespace lockstep
