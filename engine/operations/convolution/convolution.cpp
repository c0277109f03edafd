// Causal convolutions of each column by itself, with the activations of their results.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/operations/operation_table.h"
#include "engine/operations/rank_planner.h"

namespace lockstep {
namespace {

StateShape convolution_state(const GraphNode& node, size_t own_columns) {
  return {.rows = node.taps - 1, .columns = own_columns};
}

// The node whose results are kept: the activation of the convolution's among the group's nodes, or
// the convolution itself.
size_t last_of(const Graph& graph, const Group& group, size_t convolution) {
  const auto activations = nodes_of(graph, group, Operation::kActivation);
  const auto found = std::ranges::find_if(activations, [&](size_t activation) {
    return graph.nodes()[activation].inputs[0] == convolution;
  });
  return found == activations.end() ? convolution : *found;
}

ConvolutionPart plan_part(RankPlanner& planner, const GraphNode& node, const GraphNode& last) {
  const Range own = planner.own_columns(node.output);
  const Stretch& state = planner.state(node.output);
  ConvolutionPart part{.x = planner.operand(node.inputs[0], own),
                       .taps = node.taps,
                       .factors = planner.vector(node.weight),
                       .bias = planner.vector(node.bias),
                       .state = state.at<float>(),
                       .state_stride = state.floats(),
                       .columns = own.size(),
                       .output = planner.place_output(last.output)};
  if (last.operation == Operation::kActivation) part.activation = last.activation;
  if (node.inputs.size() > 1) {
    part.before = planner.operand(node.inputs[1], own);
    part.behind = planner.operand(node.inputs[2], own);
  }
  return part;
}

void plan_convolution(RankPlanner& planner, const Group& group) {
  const Graph& graph = planner.graph();
  ConvolutionStep step;
  Meet meet = Meet::kRank;
  for (const size_t node : nodes_of(graph, group, Operation::kConvolution)) {
    const GraphNode& last = graph.nodes()[last_of(graph, group, node)];
    step.parts.push_back(plan_part(planner, graph.nodes()[node], last));
    meet = std::max(meet, planner.meet_behind(last.output, step.parts.back().output));
  }
  for (const size_t member : group.nodes) {
    for (const ValueId input : graph.nodes()[member].inputs) planner.values().consume(input);
  }
  planner.emit(std::move(step), meet);
}

}  // namespace

const OperationRow kConvolutionRow = {.operation = Operation::kConvolution,
                                      .name = "causal convolution",
                                      .split = SplitRule::kInputs,
                                      .state = convolution_state,
                                      .plan = plan_convolution};

}  // namespace lockstep
