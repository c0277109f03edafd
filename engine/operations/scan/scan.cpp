// The selective scans of Mamba-1 and Mamba-2.
#include <utility>

#include "engine/operations/operation_table.h"
#include "engine/operations/rank_planner.h"

namespace lockstep {
namespace {

// Heads of one column have their matrices side by side: a row of each of them is a row.
StateShape scan_state(const GraphNode& node, size_t own_columns) {
  if (node.value_dimension > 1) return value_head_state(node, own_columns);
  return {.rows = node.head_dimension, .columns = own_columns};
}

void plan_scan(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  const Range own = planner.own_columns(node.output);
  const Range heads = {own.begin / node.value_dimension, own.end / node.value_dimension};
  const auto operand = [&](size_t input) {
    return planner.operand(node.inputs[input], delta_operand(node, input, heads));
  };
  const Stretch& state = planner.state(node.output);
  ScanStep step{.x = operand(0),
                .c = operand(1),
                .b = operand(2),
                .steps = operand(3),
                .decay = planner.vector(node.weight),
                .decay_count = node.decay_count,
                .bias = planner.vector(node.bias),
                .skip = planner.vector(node.skip),
                .groups = own_key_heads(node, heads),
                .dimension = node.head_dimension,
                .value_dimension = node.value_dimension,
                .state = state.at<float>(),
                .state_stride = state.floats(),
                .output = planner.place_output(node.output)};
  for (const ValueId input : node.inputs) planner.values().consume(input);
  const Meet meet = planner.meet_behind(node.output, step.output);
  planner.emit(std::move(step), meet);
}

}  // namespace

const OperationRow kScanRow = {.operation = Operation::kScan,
                               .name = "selective scan",
                               .split = SplitRule::kValueHeads,
                               .state = scan_state,
                               .plan = plan_scan};

}  // namespace lockstep
