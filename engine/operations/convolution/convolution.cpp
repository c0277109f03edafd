// The causal convolution of each column by itself.
#include <utility>

#include "engine/operations/operation_table.h"
#include "engine/operations/rank_planner.h"

namespace lockstep {
namespace {

StateShape convolution_state(const GraphNode& node, size_t own_columns) {
  return {.rows = node.taps - 1, .columns = own_columns};
}

void plan_convolution(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  const Range own = planner.own_columns(node.output);
  const Stretch& state = planner.state(node.output);
  ConvolutionStep step{.x = planner.operand(node.inputs[0], own),
                       .taps = node.taps,
                       .factors = planner.vector(node.weight),
                       .bias = planner.vector(node.bias),
                       .state = state.at<float>(),
                       .state_stride = state.floats(),
                       .columns = own.size(),
                       .output = planner.place_output(node.output)};
  if (node.inputs.size() > 1) {
    step.before = planner.operand(node.inputs[1], own);
    step.behind = planner.operand(node.inputs[2], own);
  }
  for (const ValueId input : node.inputs) planner.values().consume(input);
  const Meet meet = planner.meet_behind(node.output, step.output);
  planner.emit(std::move(step), meet);
}

}  // namespace

const OperationRow kConvolutionRow = {.operation = Operation::kConvolution,
                                      .name = "causal convolution",
                                      .split = SplitRule::kInputs,
                                      .state = convolution_state,
                                      .plan = plan_convolution};

}  // namespace lockstep
