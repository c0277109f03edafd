// The planning that all functions of each element by itself share.
#pragma once

#include "engine/graph/fusion/groups.h"
#include "engine/operations/elementwise/elementwise_step.h"
#include "engine/operations/rank_planner.h"

namespace lockstep {

// Emits the step of the group's only node.
void plan_elementwise(RankPlanner& planner, const Group& group,
                      const ElementwiseFunction& function);

// The same as a row has it.
template <const ElementwiseFunction& kFunction>
void plan_function(RankPlanner& planner, const Group& group) {
  plan_elementwise(planner, group, kFunction);
}

}  // namespace lockstep
