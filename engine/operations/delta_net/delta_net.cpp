// The gated delta net.
#include <utility>

#include "engine/operations/operation_table.h"
#include "engine/operations/rank_planner.h"

namespace lockstep {
namespace {

StateShape delta_state(const GraphNode& node, size_t own_columns) {
  return {.rows = own_columns / node.value_dimension * node.head_dimension,
          .columns = node.value_dimension};
}

void plan_delta_net(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  const Range own = planner.own_columns(node.output);
  const Range heads = {own.begin / node.value_dimension, own.end / node.value_dimension};
  const auto operand = [&](size_t input) {
    return planner.operand(node.inputs[input], delta_operand(node, input, heads));
  };
  const Stretch& state = planner.state(node.output);
  DeltaNetStep step{.v = operand(0),
                    .q = operand(1),
                    .k = operand(2),
                    .beta = operand(3),
                    .alpha = operand(4),
                    .decay = planner.vector(node.weight),
                    .bias = planner.vector(node.bias),
                    .epsilon = node.delta.epsilon,
                    .dimension = node.head_dimension,
                    .value_dimension = node.value_dimension,
                    .state = state.at<float>(),
                    .state_stride = state.floats(),
                    .output = planner.place_output(node.output)};
  const size_t first_key = delta_operand(node, 1, heads).begin / node.head_dimension;
  for (size_t head = heads.begin; head < heads.end; ++head) {
    step.key_heads.push_back(static_cast<uint32_t>(node.delta.key_head(head) - first_key));
  }
  for (const ValueId input : node.inputs) planner.values().consume(input);
  const Meet meet = planner.meet_behind(node.output, step.output);
  planner.emit(std::move(step), meet);
}

}  // namespace

const OperationRow kDeltaNetRow = {.operation = Operation::kDeltaNet,
                                   .name = "gated delta net",
                                   .split = SplitRule::kValueHeads,
                                   .state = delta_state,
                                   .plan = plan_delta_net};

}  // namespace lockstep
