// Turns a graph and its split into a rank's plan.
#pragma once

#include <cstddef>

#include "engine/graph/graph.h"
#include "engine/graph/plan.h"
#include "engine/graph/plan_options.h"
#include "engine/graph/split.h"
#include "engine/machine/rank_places.h"

namespace lockstep {

// These options for a rank at this place: its device's target, the number of its workers, and on a
// GPU the arithmetic that GPUs have.
PlanOptions options_on(const RankPlace& place, PlanOptions options);

// The plan of one rank; the same graph, split and options give an equal plan. CHECKs that the graph
// is one that the steps can express.
Plan make_plan(const Graph& graph, const Split& split, size_t rank, const PlanOptions& options);

}  // namespace lockstep
