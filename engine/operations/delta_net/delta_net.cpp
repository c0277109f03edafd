// The gated delta net, with the slices of its heads' factors, and the norm and the gate of what it
// gives, where its group has them.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "engine/operations/operation_table.h"
#include "engine/operations/rank_planner.h"

namespace lockstep {
namespace {

// Beta or alpha, or what a slice among the group's nodes makes it of.
HeadFactors plan_factors(RankPlanner& planner, const Group& group, ValueId factors, Range heads) {
  const Graph& graph = planner.graph();
  const size_t own = graph.columns(factors) / graph.nodes()[group.lead].head_count;  // of a head
  HeadFactors planned;
  if (!std::ranges::binary_search(group.nodes, factors)) {
    planned.rows = planner.operand(factors, {heads.begin * own, heads.end * own});
    for (size_t head = 0; head < heads.size(); ++head) {
      planned.columns.push_back(static_cast<uint32_t>(head * own));
    }
    return planned;
  }
  const GraphNode& slice = graph.producer(factors);
  const size_t all = graph.columns(slice.inputs[0]);
  const size_t each = graph.columns(factors) / slice.head_count;
  planned.rows = planner.operand(slice.inputs[0], {0, all});
  for (size_t head = heads.begin; head < heads.end; ++head) {
    const size_t place = head * own;
    const size_t first = place / each * (all / slice.head_count) + slice.first_column;
    planned.columns.push_back(static_cast<uint32_t>(first + place % each));
  }
  return planned;
}

// The columns of the gate's result are the delta net's.
std::optional<DeltaGate> plan_gate(RankPlanner& planner, const Group& group, Range own) {
  const auto gate = node_of(planner.graph(), group, Operation::kGate);
  if (!gate) return std::nullopt;
  const GraphNode& node = planner.graph().nodes()[*gate];
  const GraphNode& norm = planner.graph().producer(node.inputs[1]);
  return DeltaGate{.norm = planner.vector(norm.weight),
                   .epsilon = norm.epsilon,
                   .activation = node.activation,
                   .open = planner.operand(node.inputs[0], own)};
}

void plan_delta_net(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  const Range own = planner.own_columns(node.output);
  const Range heads = {own.begin / node.value_dimension, own.end / node.value_dimension};
  const auto operand = [&](size_t input) {
    return planner.operand(node.inputs[input], delta_operand(node, input, heads));
  };
  const Stretch& state = planner.state(node.output);
  const ValueId result = group.nodes.back();
  DeltaNetStep step{.v = operand(0),
                    .q = operand(1),
                    .k = operand(2),
                    .beta = plan_factors(planner, group, node.inputs[3], heads),
                    .alpha = plan_factors(planner, group, node.inputs[4], heads),
                    .decay = planner.vector(node.weight),
                    .bias = planner.vector(node.bias),
                    .key_heads = own_key_heads(node, heads),
                    .decays = node.decay_count,
                    .epsilon = node.delta.epsilon,
                    .dimension = node.head_dimension,
                    .value_dimension = node.value_dimension,
                    .state = state.at<float>(),
                    .state_stride = state.floats(),
                    .gate = plan_gate(planner, group, own),
                    .output = planner.place_output(result)};
  for (const size_t member : group.nodes) {
    for (const ValueId input : planner.graph().nodes()[member].inputs) {
      planner.values().consume(input);
    }
  }
  const Meet meet = planner.meet_behind(result, step.output);
  planner.emit(std::move(step), meet);
}

}  // namespace

const OperationRow kDeltaNetRow = {.operation = Operation::kDeltaNet,
                                   .name = "gated delta net",
                                   .split = SplitRule::kValueHeads,
                                   .state = value_head_state,
                                   .plan = plan_delta_net};

}  // namespace lockstep
