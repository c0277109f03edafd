// The places of a rank's weights in its arena.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/graph/split.h"
#include "engine/operations/plan.h"
#include "engine/operations/plan_target.h"

namespace lockstep {

// The rank's slice of every weight, by WeightId: one after the other, each aligned as its device
// wants it. A weight that the rank does not hold has no bytes.
std::vector<WeightSlice> place_weights(const Graph& graph, const Split& split, size_t rank,
                                       const PlanTarget& target);

// The size of the arena of these slices.
size_t weight_arena_bytes(const std::vector<WeightSlice>& slices, const PlanTarget& target);

}  // namespace lockstep
