// Products: those that share an input are one step, with what follows on their rows.
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/kernels/packed_matrix.h"
#include "engine/operations/matmul/product_planner.h"
#include "engine/operations/operation_table.h"

namespace lockstep {
namespace {

// Places the product's results.
ResidualPlace place_product(RankPlanner& planner, ProductPlanner& product, const Group& group,
                            const GraphNode& node) {
  if (const auto sum = node_of(planner.graph(), group, Operation::kAdd)) {
    return product.add_to_residual(group, node, planner.graph().nodes()[*sum]);
  }
  if (node.output == planner.graph().logits()) return product.place_logits();
  if (planner.split().values[node.output].kind == SplitKind::kPartial) {
    return product.place_partial(node.output);
  }
  return product.place_rows(node.output);
}

void add_part(RankPlanner& planner, ProductPlanner& product, const Group& group,
              const GraphNode& node, MatmulStep& step) {
  MatmulPart part;
  part.matrix = planner.matrix(node.weight);
  part.forms = planner.options().forms[static_cast<size_t>(part.matrix.format)];
  part.bias = planner.vector(node.bias);
  const ResidualPlace place = place_product(planner, product, group, node);
  part.output = place.rows;
  part.output_stride = place.stride;
  part.accumulate = place.accumulate;
  part.remote = node.output == planner.graph().logits() && planner.rank() != 0;
  if (place.finish) step.finish = *place.finish;
  if (part.matrix.rows > 0) step.parts.push_back(part);
}

// Places the activation of both products, or of one.
GateFinish fuse_gate(RankPlanner& planner, ProductPlanner& product, const GraphNode& activation,
                     MatmulStep& step) {
  // The gate comes first, whichever the graph computes first.
  const bool is_swapped = activation.inputs.back() < activation.inputs.front();
  if (is_swapped && step.parts.size() == 2) std::swap(step.parts[0], step.parts[1]);
  const GateFinish finish{.activation = activation.activation,
                          .output = product.place_finished(activation.output)};
  for (const ValueId value : activation.inputs) planner.values().consume(value);
  return finish;
}

void plan_products(RankPlanner& planner, const Group& group) {
  const Graph& graph = planner.graph();
  ValueBuffers& values = planner.values();
  const ValueId input = graph.nodes()[group.lead].inputs[0];
  MatmulStep step;
  step.rows = graph.rows(input);
  step.input = values.forms(input);
  step.norm = values.of(input).norm;
  ProductPlanner product(planner);
  const std::vector<size_t> products = nodes_of(graph, group, Operation::kMatmul);
  for (const size_t node : products) add_part(planner, product, group, graph.nodes()[node], step);
  for (const Operation operation : {Operation::kGate, Operation::kActivation}) {
    if (const auto activation = node_of(graph, group, operation)) {
      step.finish = fuse_gate(planner, product, graph.nodes()[*activation], step);
    }
  }
  for (size_t count = 0; count < products.size(); ++count) values.consume(input);
  product.emit(std::move(step));
}

// Whole panels of a matrix in a node's memory.
PlannedMatrix rows_of(const PlannedMatrix& matrix, size_t first, size_t count) {
  PlannedMatrix rows = matrix;
  rows.rows = count;
  rows.data = matrix.data + first / kPanelRows * panel_bytes(matrix.format, matrix.columns);
  return rows;
}

// A product for each head, which share one list of panels.
void plan_head_products(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  const ValueId input = node.inputs[0];
  const size_t rows = planner.graph().columns(node.output) / node.head_count;
  const Range own = planner.own_columns(node.output);
  const Forms forms = planner.values().forms(input);
  const size_t first_held =
      forms.columns == planner.graph().columns(input) ? 0 : planner.own_columns(input).begin;
  const PlannedMatrix all = planner.matrix(node.weight);
  ProductPlanner product(planner);
  const ResidualPlace output = product.place_rows(node.output);
  MatmulStep step{.rows = planner.graph().rows(input),
                  .input = forms,
                  .norm = planner.values().of(input).norm,
                  .parts = {},
                  .finish = {}};
  for (size_t row = own.begin; row < own.end; row += rows) {
    const size_t head = row / rows;
    step.parts.push_back({.matrix = rows_of(all, row - own.begin, rows),
                          .forms = planner.options().forms[static_cast<size_t>(all.format)],
                          .first_column = head * node.head_dimension - first_held,
                          .output = output.rows + (row - own.begin),
                          .output_stride = output.stride});
  }
  planner.values().consume(input);
  product.emit(std::move(step));
}

std::optional<std::string_view> matmul_gap(const GroupParts& parts, const GraphNode& node) {
  return node.output == parts.group.lead ? sum_gap(parts) : std::nullopt;
}

}  // namespace

const OperationRow kMatmulRow = {.operation = Operation::kMatmul,
                                 .name = "product",
                                 .split = SplitRule::kProduct,
                                 .cost = Cost::kMatrix,
                                 .plan = plan_products,
                                 .leaves_forms = true,
                                 .has_gpu_step = true,
                                 .gpu_gap = matmul_gap};

const OperationRow kHeadMatmulRow = {.operation = Operation::kHeadMatmul,
                                     .name = "product of heads",
                                     .split = SplitRule::kHeads,
                                     .cost = Cost::kMatrix,
                                     .hands_on = true,
                                     .plan = plan_head_products};

}  // namespace lockstep
