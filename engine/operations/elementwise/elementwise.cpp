#include "engine/operations/elementwise/elementwise.h"

#include <algorithm>
#include <utility>

#include "engine/operations/operation_table.h"

namespace lockstep {

void plan_elementwise(RankPlanner& planner, const Group& group,
                      const ElementwiseFunction& function) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  const Range own = planner.own_columns(node.output);
  ElementwiseStep step{.function = &function,
                       .rows = planner.graph().rows(node.output),
                       .routing = planner.routing_behind(node.output),
                       .activation = node.activation,
                       .scale = node.scale,
                       .temperature = node.temperature,
                       .x = planner.operand(node.inputs[0], own),
                       .y = {},
                       .columns = own.size(),
                       .output = planner.place_output(node.output)};
  if (node.inputs.size() > 1) {
    const bool has_factors = function.has_factors && !own.empty();
    step.y = planner.operand(node.inputs[1], has_factors ? Range{0, 1} : own);
  }
  planner.emit_node(node, std::move(step));
}

namespace {

void select(const ElementwiseStep&, const ElementwiseRow& row, const KernelTable&, float* out) {
  std::copy_n(row.x, row.count, out);
}
constexpr ElementwiseFunction kSelect = {.name = "select", .apply = select, .selects = true};

}  // namespace

const OperationRow kSelectRowsRow = {.operation = Operation::kSelectRows,
                                     .name = "selection of rows",
                                     .split = SplitRule::kFirstInput,
                                     .plan = plan_function<kSelect>,
                                     .has_gpu_step = true};

}  // namespace lockstep
