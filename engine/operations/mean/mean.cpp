// The mean of the rows of a token's sequence.
#include "engine/operations/operation_table.h"
#include "engine/operations/rank_planner.h"

namespace lockstep {
namespace {

void plan_mean(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  const Range own = planner.own_columns(node.output);
  planner.emit_node(node, MeanStep{.x = planner.operand(node.inputs[0], own),
                                   .columns = own.size(),
                                   .output = planner.place_output(node.output)});
}

}  // namespace

const OperationRow kMeanRowsRow = {.operation = Operation::kMeanRows,
                                   .name = "mean of rows",
                                   .split = SplitRule::kFirstInput,
                                   .plan = plan_mean,
                                   .has_gpu_step = true};

}  // namespace lockstep
