// Rows that a batch brings with its tokens. Every rank reads the batch, so none sends any.
#include "engine/operations/operation_table.h"
#include "engine/operations/rank_planner.h"

namespace lockstep {
namespace {

void plan_given_rows(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  planner.emit_node(node, GivenRowsStep{.columns = planner.own_columns(node.output).size(),
                                        .output = planner.place_output(node.output)});
}

}  // namespace

const OperationRow kGivenRowsRow = {.operation = Operation::kGivenRows,
                                    .name = "rows that are given with tokens",
                                    .split = SplitRule::kMirrored,
                                    .plan = plan_given_rows};

}  // namespace lockstep
