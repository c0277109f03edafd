// The steps of a mixture of experts.
#include <algorithm>
#include <array>
#include <utility>

#include "engine/graph/rank_planner.h"

namespace lockstep {

// One for all layers: each is done with it before the next one routes.
void RankPlanner::place_routing() {
  const size_t experts = graph_.most_experts();
  if (experts == 0) return;
  const size_t rows = options_.batch_tokens * graph_.chosen_experts();
  const auto place = [&](size_t count) {
    return values_.activations().allocate_f32(Arena::kScratch, count, 1);
  };
  routing_.chosen = place(rows).at<uint32_t>();
  routing_.weights = place(rows).at<float>();
  routing_.row_begin = place(experts + 1).at<uint32_t>();
  routing_.row_tokens = place(rows).at<uint32_t>();
}

Routing RankPlanner::routing_of(ValueId routing) const {
  const GraphNode& node = graph_.producer(routing);
  Routing result = routing_;
  result.expert_count = node.expert_count;
  result.chosen_count = node.chosen_count;
  result.weighs_inputs = node.gating.weighs_inputs;
  return result;
}

ExpertPart RankPlanner::expert_part(const GraphNode& node) const {
  ExpertPart part;
  for (const WeightId expert : node.experts) part.matrices.push_back(matrix(expert));
  part.forms = options_.forms[static_cast<size_t>(part.matrices.front().format)];
  // The first rank alone adds them to partial results.
  const auto is_held = [&](WeightId bias) { return bool{vector(bias)}; };
  if (std::ranges::all_of(node.biases, is_held)) {
    for (const WeightId bias : node.biases) part.biases.push_back(vector(bias));
  }
  return part;
}

void RankPlanner::emit_route(const GraphNode& node) {
  const ValueId scores = node.inputs[0];
  const Stretch rows = *values_.of(scores).plain;
  RouteStep step{.scores = own_columns(scores).empty() ? ArenaOffset<float>() : rows.at<float>(),
                 .score_stride = rows.floats(),
                 .routing = routing_of(node.output),
                 .gating = node.gating,
                 .bias = vector(node.bias)};
  values_.consume(scores);
  emit_step(std::move(step));
}

// `fused`: they go straight into what follows.
void RankPlanner::place_expert_rows(const GraphNode& node, ExpertPart& part, bool fused) {
  const Stretch rows =
      values_.place_plain(node.output, Arena::kScratch, fused ? Range{} : own_columns(node.output));
  part.output = rows.at<float>();
  part.output_stride = rows.floats();
}

// The products of both inputs of a gate's activation, whichever of them the graph computes first.
void RankPlanner::emit_expert_gate(const Group& group) {
  const GraphNode& activation = graph_.nodes()[*node_of(graph_, group, Operation::kGate)];
  const GraphNode& gate = graph_.producer(activation.inputs[0]);
  const GraphNode& up = graph_.producer(activation.inputs[1]);
  const ValueId input = gate.inputs[0];
  ExpertGateStep step{.input = values_.forms(input),
                      .norm = values_.of(input).norm,
                      .routing = routing_of(gate.inputs[1]),
                      .gate = expert_part(gate),
                      .up = expert_part(up),
                      .activation = activation.activation};
  const bool fused = target_.fuses_gate(step);
  place_expert_rows(gate, step.gate, fused);
  place_expert_rows(up, step.up, fused);
  if (step.gate.matrices.front().rows > 0) {
    const std::array<const ExpertPart*, 2> parts = {&step.gate, &step.up};
    step.gathered = target_.place_gathered(step.input, parts, options_, step_areas_);
  }
  step.output = values_.place_forms(activation.output, own_columns(activation.output));
  for (const ValueId value : {gate.output, up.output, input, input}) values_.consume(value);
  const Meet meet = step.output.gather ? Meet::kAllRanks : Meet::kRank;
  emit_step(std::move(step), meet);
  step_areas_.release();
}

void RankPlanner::emit_expert_product(const GraphNode& node) {
  const ValueId input = node.inputs[0];
  ExpertProductStep step{.input = values_.forms(input),
                         .norm = values_.of(input).norm,
                         .routing = routing_of(node.inputs[1]),
                         .part = expert_part(node)};
  place_expert_rows(node, step.part, /*fused=*/false);
  if (step.part.matrices.front().rows > 0) {
    const std::array<const ExpertPart*, 1> parts = {&step.part};
    step.gathered = target_.place_gathered(step.input, parts, options_, step_areas_);
  }
  values_.consume(input);
  emit_step(std::move(step));
  step_areas_.release();
  emit_forms(node.output);
}

void RankPlanner::emit_expert_sum(const Group& group) {
  const GraphNode& node = graph_.nodes()[group.lead];
  const auto addition = node_of(graph_, group, Operation::kAdd);
  begin_product();
  ExpertSumStep step{.input = values_.forms(node.inputs[0]),
                     .routing = routing_of(node.inputs[1]),
                     .down = expert_part(node)};
  if (step.down.matrices.front().rows > 0) {
    target_.place_products(step, values_.row_count(node.inputs[0]), options_, step_areas_);
  }
  ResidualPlace place;
  if (addition) {
    place = add_to_residual(group, node, graph_.nodes()[*addition]);
  } else if (split_.values[node.output].kind == SplitKind::kPartial) {
    place = place_partial(node.output);
  } else {
    place = place_expert_sum(node.output);
  }
  step.down.output = place.rows;
  step.down.output_stride = place.stride;
  step.accumulate = place.accumulate;
  if (place.finish) step.finish = std::move(*place.finish);
  values_.consume(node.inputs[0]);
  emit_product(std::move(step));
}

}  // namespace lockstep
