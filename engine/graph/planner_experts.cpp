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
  RouteStep step{.scores = own_columns(scores).empty() ? nullptr : at<float>(rows),
                 .score_stride = floats(rows),
                 .routing = routing_of(node.output)};
  values_.consume(scores);
  emit_step(std::move(step));
}

// `fused`: they go straight into what follows.
void RankPlanner::place_expert_rows(const GraphNode& node, ExpertPart& part, bool fused) {
  values_.set_rows(node.output, Rows::kExperts);
  const Stretch rows =
      values_.place_plain(node.output, Arena::kScratch, fused ? Range{} : own_columns(node.output));
  part.output = at<float>(rows);
  part.output_stride = floats(rows);
}

// In the forms in which the experts read their input.
void RankPlanner::place_gathered(ExpertGateStep& step) {
  step.gathered.columns = step.input.columns;
  for (const ExpertPart* part : {&step.gate, &step.up}) {
    for (const ActivationForm form : {part->forms.prompted, part->forms.generated}) {
      FormBuffer& buffer = step.gathered[form];
      if (buffer.is_read()) continue;
      const Stretch rows = values_.activations().allocate(form, Arena::kScratch, step.input.columns,
                                                          kExpertRows * options_.workers);
      buffer = step.input[form];
      buffer.rows = at<std::byte>(rows);
      buffer.stride_bytes = rows.stride_bytes;
      step_areas_.push_back(rows);
    }
  }
}

void RankPlanner::place_products(ExpertSumStep& step, ValueId input) {
  const bool by_row = is_on_gpu();
  const Stretch rows = values_.activations().allocate_f32(
      Arena::kScratch, by_row ? step.down.matrices.front().rows : kExpertSumColumns,
      by_row ? values_.row_count(input) : kExpertRows * options_.workers);
  step.products = at<float>(rows);
  step.product_stride = floats(rows);
  step_areas_.push_back(rows);
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
                      .workers = options_.workers,
                      .gate = expert_part(gate),
                      .up = expert_part(up)};
  const bool fused = is_on_gpu() && step.is_one_shape();
  place_expert_rows(gate, step.gate, fused);
  place_expert_rows(up, step.up, fused);
  if (step.gate.matrices.front().rows > 0 && !is_on_gpu()) place_gathered(step);
  values_.set_rows(activation.output, Rows::kExperts);
  step.output = values_.place_forms(activation.output, own_columns(activation.output));
  for (const ValueId value : {gate.output, up.output, input, input}) values_.consume(value);
  for (const ValueId value : {gate.output, up.output, activation.output}) emitted_[value] = true;
  const Meet meet = step.output.gather ? Meet::kAllRanks : Meet::kRank;
  emit_step(std::move(step), meet);
  release_step_areas();
}

void RankPlanner::emit_expert_sum(const GraphNode& node) {
  const GraphNode& sum = consumer_of(node, Operation::kAdd);
  begin_product();
  ExpertSumStep step{.input = values_.forms(node.inputs[0]),
                     .routing = routing_of(node.inputs[1]),
                     .down = expert_part(node),
                     .workers = options_.workers};
  if (step.down.matrices.front().rows > 0) place_products(step, node.inputs[0]);
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
