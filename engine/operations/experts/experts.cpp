// A mixture's experts: what each of them multiplies its tokens' rows with.
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/operations/matmul/product_planner.h"
#include "engine/operations/operation_table.h"

namespace lockstep {
namespace {

ExpertPart expert_part(const RankPlanner& planner, const GraphNode& node) {
  ExpertPart part;
  for (const WeightId expert : node.experts) part.matrices.push_back(planner.matrix(expert));
  part.forms = planner.options().forms[static_cast<size_t>(part.matrices.front().format)];
  // The first rank alone adds them to partial results.
  const auto is_held = [&](WeightId bias) { return bool{planner.vector(bias)}; };
  if (std::ranges::all_of(node.biases, is_held)) {
    for (const WeightId bias : node.biases) part.biases.push_back(planner.vector(bias));
  }
  return part;
}

// `fused`: they go straight into what follows.
void place_expert_rows(RankPlanner& planner, const GraphNode& node, ExpertPart& part, bool fused) {
  const Stretch rows = planner.values().place_plain(
      node.output, Arena::kScratch, fused ? Range{} : planner.own_columns(node.output));
  part.output = rows.at<float>();
  part.output_stride = rows.floats();
}

// The products of both inputs of a gate's activation, whichever of them the graph computes first.
void plan_expert_gate(RankPlanner& planner, const Group& group) {
  const GraphNode& activation =
      planner.graph().nodes()[*node_of(planner.graph(), group, Operation::kGate)];
  const GraphNode& gate = planner.graph().producer(activation.inputs[0]);
  const GraphNode& up = planner.graph().producer(activation.inputs[1]);
  const ValueId input = gate.inputs[0];
  ExpertGateStep step{.input = planner.values().forms(input),
                      .norm = planner.values().of(input).norm,
                      .routing = planner.routing_of(gate.inputs[1]),
                      .gate = expert_part(planner, gate),
                      .up = expert_part(planner, up),
                      .activation = activation.activation};
  const bool fused = planner.target().fuses_gate(step);
  place_expert_rows(planner, gate, step.gate, fused);
  place_expert_rows(planner, up, step.up, fused);
  if (step.gate.matrices.front().rows > 0) {
    const std::array<const ExpertPart*, 2> parts = {&step.gate, &step.up};
    step.gathered =
        planner.target().place_gathered(step.input, parts, planner.options(), planner.step_areas());
  }
  step.output =
      planner.values().place_forms(activation.output, planner.own_columns(activation.output));
  for (const ValueId value : {gate.output, up.output, input, input})
    planner.values().consume(value);
  const Meet meet = step.output.gather ? Meet::kAllRanks : Meet::kRank;
  planner.emit(std::move(step), meet);
  planner.step_areas().release();
}

void plan_expert_product(RankPlanner& planner, const GraphNode& node) {
  const ValueId input = node.inputs[0];
  ExpertProductStep step{.input = planner.values().forms(input),
                         .norm = planner.values().of(input).norm,
                         .routing = planner.routing_of(node.inputs[1]),
                         .part = expert_part(planner, node)};
  place_expert_rows(planner, node, step.part, /*fused=*/false);
  if (step.part.matrices.front().rows > 0) {
    const std::array<const ExpertPart*, 1> parts = {&step.part};
    step.gathered =
        planner.target().place_gathered(step.input, parts, planner.options(), planner.step_areas());
  }
  planner.values().consume(input);
  planner.emit(std::move(step));
  planner.step_areas().release();
  planner.emit_forms(node.output);
}

void plan_expert_products(RankPlanner& planner, const Group& group) {
  if (group.nodes.size() > 1) return plan_expert_gate(planner, group);
  plan_expert_product(planner, planner.graph().nodes()[group.lead]);
}

void plan_expert_sum(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  const auto addition = node_of(planner.graph(), group, Operation::kAdd);
  ProductPlanner product(planner);
  ExpertSumStep step{.input = planner.values().forms(node.inputs[0]),
                     .routing = planner.routing_of(node.inputs[1]),
                     .down = expert_part(planner, node)};
  if (step.down.matrices.front().rows > 0) {
    planner.target().place_products(step, planner.values().row_count(node.inputs[0]),
                                    planner.options(), planner.step_areas());
  }
  ResidualPlace place;
  if (addition) {
    place = product.add_to_residual(group, node, planner.graph().nodes()[*addition]);
  } else if (planner.split().values[node.output].kind == SplitKind::kPartial) {
    place = product.place_partial(node.output);
  } else {
    place = product.place_sum(node.output);
  }
  step.down.output = place.rows;
  step.down.output_stride = place.stride;
  step.accumulate = place.accumulate;
  if (place.finish) step.finish = std::move(*place.finish);
  planner.values().consume(node.inputs[0]);
  product.emit(std::move(step));
}

// Whether a GPU finds each expert's weights by its number.
bool are_evenly_placed(const std::vector<WeightId>& experts, size_t most_sharing) {
  const auto places = even_places(experts.size(), [&](size_t expert) { return experts[expert]; });
  return places && places->sharing <= most_sharing;
}

std::optional<std::string_view> expert_gap(const GroupParts& parts, const GraphNode& node) {
  if (node.operation == Operation::kExpertSum && node.output == parts.group.lead) {
    if (const auto gap = sum_gap(parts)) return gap;
  }
  if (!are_evenly_placed(node.experts, node.experts.size())) return "experts in no order";
  if (!are_evenly_placed(node.biases, 1)) return "experts that share biases";
  return std::nullopt;
}

}  // namespace

const OperationRow kExpertMatmulRow = {.operation = Operation::kExpertMatmul,
                                       .name = "experts' product",
                                       .split = SplitRule::kProduct,
                                       .cost = Cost::kExperts,
                                       .plan = plan_expert_products,
                                       .has_gpu_step = true,
                                       .gpu_gap = expert_gap};

const OperationRow kExpertSumRow = {.operation = Operation::kExpertSum,
                                    .name = "experts' sum",
                                    .split = SplitRule::kProduct,
                                    .cost = Cost::kExperts,
                                    .plan = plan_expert_sum,
                                    .leaves_forms = true,
                                    .has_gpu_step = true,
                                    .gpu_gap = expert_gap};

}  // namespace lockstep
