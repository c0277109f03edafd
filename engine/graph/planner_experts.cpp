// The steps of a mixture of experts.
#include "engine/base/check.h"
#include "engine/graph/rank_planner.h"

namespace lockstep {

const GraphNode& RankPlanner::consumer_of(const GraphNode& node, Operation operation) const {
  const auto next = only_consumer(node.output);
  CHECK(next && graph_.nodes()[*next].operation == operation,
        "value {} of experts is not used as the steps can express", node.output);
  return graph_.nodes()[*next];
}

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
  return result;
}

ExpertPart RankPlanner::expert_part(const GraphNode& node) const {
  ExpertPart part;
  for (const WeightId expert : node.experts) part.matrices.push_back(matrix(expert));
  part.forms = options_.forms[static_cast<size_t>(part.matrices.front().format)];
  return part;
}

void RankPlanner::emit_route(const GraphNode& node) {
  const ValueId scores = node.inputs[0];
  const Stretch rows = *values_.of(scores).plain;
  RouteStep step{.scores = own_columns(scores).empty() ? ArenaOffset<float>() : rows.at<float>(),
                 .score_stride = rows.floats(),
                 .routing = routing_of(node.output)};
  values_.consume(scores);
  emit_step(std::move(step));
}

// `fused`: they go straight into what follows.
void RankPlanner::place_expert_rows(const GraphNode& node, ExpertPart& part, bool fused) {
  values_.set_rows(node.output, Rows::kExperts);
  const Stretch rows =
      values_.place_plain(node.output, Arena::kScratch, fused ? Range{} : own_columns(node.output));
  part.output = rows.at<float>();
  part.output_stride = rows.floats();
}

// The products of both inputs of a gate's activation, whichever of them the graph computes first.
void RankPlanner::emit_expert_gate(const GraphNode& node) {
  const GraphNode& activation = consumer_of(node, Operation::kSiluMultiply);
  const GraphNode& gate = graph_.producer(activation.inputs[0]);
  const GraphNode& up = graph_.producer(activation.inputs[1]);
  CHECK(gate.operation == node.operation && up.operation == node.operation &&
            gate.inputs == up.inputs && own_columns(gate.output) == own_columns(up.output),
        "value {} gates experts of another input", gate.output);
  const ValueId input = gate.inputs[0];
  ExpertGateStep step{.input = values_.forms(input),
                      .norm = values_.of(input).norm,
                      .routing = routing_of(gate.inputs[1]),
                      .gate = expert_part(gate),
                      .up = expert_part(up)};
  const bool fused = target_.fuses_gate(step);
  place_expert_rows(gate, step.gate, fused);
  place_expert_rows(up, step.up, fused);
  if (step.gate.matrices.front().rows > 0) {
    step.gathered = target_.place_gathered(step, options_, step_areas_);
  }
  values_.set_rows(activation.output, Rows::kExperts);
  step.output = values_.place_forms(activation.output, own_columns(activation.output));
  for (const ValueId value : {gate.output, up.output, input, input}) values_.consume(value);
  for (const ValueId value : {gate.output, up.output, activation.output}) emitted_[value] = true;
  const Meet meet = step.output.gather ? Meet::kAllRanks : Meet::kRank;
  emit_step(std::move(step), meet);
  step_areas_.release();
}

void RankPlanner::emit_expert_sum(const GraphNode& node) {
  const GraphNode& sum = consumer_of(node, Operation::kAdd);
  begin_product();
  ExpertSumStep step{.input = values_.forms(node.inputs[0]),
                     .routing = routing_of(node.inputs[1]),
                     .down = expert_part(node)};
  if (step.down.matrices.front().rows > 0) {
    target_.place_products(step, values_.row_count(node.inputs[0]), options_, step_areas_);
  }
  ResidualPlace place = add_to_residual(node, sum);
  step.down.output = place.rows;
  step.down.output_stride = place.stride;
  step.accumulate = place.accumulate;
  if (place.finish) step.finish = std::move(*place.finish);
  values_.consume(node.inputs[0]);
  emitted_[sum.output] = true;
  emit_product(std::move(step));
}

}  // namespace lockstep
