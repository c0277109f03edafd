// Operations on each head by itself: norms, rotary positions, slices and joins.
#include <optional>
#include <string_view>
#include <utility>

#include "engine/base/check.h"
#include "engine/operations/operation_table.h"
#include "engine/operations/rank_planner.h"

namespace lockstep {
namespace {

void plan_heads(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  CHECK(planner.graph().rows(node.output) == Rows::kTokens,
        "value {} has heads of other rows than tokens", node.output);
  const Range own = planner.own_columns(node.output);
  const Stretch output =
      planner.values().place_plain(node.output, planner.plain_arena(node.output), own);
  HeadsStep step{.input = planner.operand(node.inputs[0], own),
                 .head_count = own.size() / node.head_dimension,
                 .head_dimension = node.head_dimension,
                 .is_normed = node.operation == Operation::kHeadNorm,
                 .subtracts_mean = node.subtracts_mean,
                 .norm = planner.vector(node.weight),
                 .norm_stride = has_own_norms(planner.graph(), node) ? node.head_dimension : 0,
                 .epsilon = node.epsilon,
                 .output = output.at<float>(),
                 .output_stride = output.floats()};
  if (node.operation == Operation::kRotary) {
    step.pairs = planner.graph().rotaries()[node.rotary].pairs;
    step.rotary = planner.rotary_table(node.rotary);
  }
  planner.values().consume(node.inputs[0]);
  planner.emit(std::move(step));
  planner.emit_forms(node.output);
}

// A copy of some columns of each head, one operand's after another's.
void plan_heads_copy(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  const Range own = planner.own_columns(node.output);
  const size_t columns = planner.graph().columns(node.output) / node.head_count;
  const Range heads = {own.begin / columns, own.end / columns};
  CopyHeadsStep step{.rows = planner.graph().rows(node.output),
                     .routing = planner.routing_behind(node.output),
                     .parts = {},
                     .columns = own.size(),
                     .output = planner.place_output(node.output)};
  const auto add = [&](ValueId input, size_t head_count, Range copied) {
    const size_t head_columns = planner.graph().columns(input) / head_count;
    const bool is_shared = head_count == 1;
    const Range read = is_shared ? Range{0, heads.empty() ? 0 : head_columns}
                                 : Range{heads.begin * head_columns, heads.end * head_columns};
    step.parts.push_back({.input = planner.operand(input, read),
                          .head_stride = is_shared ? 0 : head_columns,
                          .first = copied.begin,
                          .columns = copied.size()});
  };
  if (node.operation == Operation::kSliceHeads) {
    add(node.inputs[0], node.head_count, {node.first_column, node.first_column + columns});
  } else {
    add(node.inputs[0], node.head_count, {0, node.head_dimension});
    add(node.inputs[1], node.kv_head_count, {0, columns - node.head_dimension});
  }
  planner.emit_node(node, std::move(step));
}

std::optional<std::string_view> rotary_gap(const GroupParts& parts, const GraphNode& node) {
  if (parts.graph.rotaries()[node.rotary].offset == 0) return std::nullopt;
  return "rotary positions beside the tokens' own";
}

}  // namespace

const OperationRow kHeadNormRow = {.operation = Operation::kHeadNorm,
                                   .name = "norm of heads",
                                   .split = SplitRule::kHeads,
                                   .hands_on = true,
                                   .plan = plan_heads,
                                   .leaves_forms = true,
                                   .has_gpu_step = true};

const OperationRow kRotaryRow = {.operation = Operation::kRotary,
                                 .name = "rotary positions",
                                 .split = SplitRule::kHeads,
                                 .hands_on = true,
                                 .plan = plan_heads,
                                 .leaves_forms = true,
                                 .has_gpu_step = true,
                                 .gpu_gap = rotary_gap};

const OperationRow kSliceHeadsRow = {.operation = Operation::kSliceHeads,
                                     .name = "slice of heads",
                                     .split = SplitRule::kHeads,
                                     .hands_on = true,
                                     .plan = plan_heads_copy,
                                     .has_gpu_step = true};

const OperationRow kJoinHeadsRow = {.operation = Operation::kJoinHeads,
                                    .name = "join of heads",
                                    .split = SplitRule::kHeads,
                                    .hands_on = true,
                                    .plan = plan_heads_copy,
                                    .has_gpu_step = true};

}  // namespace lockstep
