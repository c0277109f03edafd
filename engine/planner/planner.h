// Turns a graph and its split into a rank's plan.
#pragma once

#include <cstddef>

#include "engine/graph/graph.h"
#include "engine/graph/split.h"
#include "engine/operations/plan.h"
#include "engine/operations/plan_target.h"
#include "engine/planner/split_graph.h"

namespace lockstep {

// The plan of one rank; the same graph, split and options give an equal plan. CHECKs that the graph
// is one that the steps can express.
Plan make_plan(const Graph& graph, const Split& split, size_t rank, const PlanOptions& options);

// The same of a host's first rank, where it is not rank 0: with space for the logits that the
// host's ranks write, on their way to rank 0's.
Plan make_first_plan(const Graph& graph, const Split& split, size_t rank,
                     const PlanOptions& options);

}  // namespace lockstep
