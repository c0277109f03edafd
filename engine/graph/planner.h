// Turns a graph and its split into a rank's plan.
#pragma once

#include <cstddef>
#include <span>

#include "engine/graph/graph.h"
#include "engine/graph/plan.h"
#include "engine/graph/plan_options.h"
#include "engine/graph/split.h"
#include "engine/machine/rank_places.h"

namespace lockstep {

// These options for a rank at this place, with its workers: a GPU has a layout and arithmetic of
// its own.
PlanOptions options_on(const RankPlace& place, PlanOptions options);

// The plan of one rank. `arenas`: of all ranks, or none for the sizes. The same graph, split and
// options give the same plan but for the addresses. The graph must outlive the plan. CHECKs that
// the graph is one that the steps can express.
Plan make_plan(const Graph& graph, const Split& split, size_t rank, const PlanOptions& options,
               std::span<const ArenaAddresses> arenas = {});

}  // namespace lockstep
