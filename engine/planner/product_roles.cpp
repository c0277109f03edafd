#include "engine/planner/product_roles.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/operations/operation_table.h"

namespace lockstep {

const GraphNode* ProductRoles::consumer(ValueId value) const {
  const std::vector<size_t>& nodes = consumers(value);
  return nodes.empty() ? nullptr : &graph_.nodes()[nodes.front()];
}

bool ProductRoles::is_factors(ValueId value) const {
  return std::ranges::any_of(consumers(value), [&](size_t index) {
    const GraphNode& next = graph_.nodes()[index];
    if (next.operation == Operation::kScaleRows) return value == next.inputs[1];
    return row_of(next.operation).split == SplitRule::kInputs && is_factors(next.output);
  });
}

// Whether the value has a column for each head of a delta net or a scan, which every rank finds
// out. Heads of one column have as many as there are values, which are cut instead, and so is what
// has columns for each row of a head's state.
bool is_head_factors(const Graph& graph, const GraphNode& node, ValueId value) {
  return row_of(node.operation).split == SplitRule::kValueHeads && node.value_dimension > 1 &&
         graph.columns(value) == node.head_count &&
         std::ranges::find(node.inputs.begin() + 3, node.inputs.end(), value) != node.inputs.end();
}

// Follows what happens to a product's output up to where it ends in something else.
Role ProductRoles::role_of(const GraphNode& product) const {
  ValueId value = product.output;
  if (graph_.columns(value) == 1 && is_factors(value)) return Role::kFactors;
  while (true) {
    if (value == graph_.logits()) return Role::kLogits;
    const GraphNode* next = consumer(value);
    CHECK(next != nullptr, "value {} is computed and never used", value);
    if (row_of(next->operation).hands_on) {
      value = next->output;
      continue;
    }
    if (is_head_factors(graph_, *next, value)) return Role::kFactors;
    if (has_state(*next)) return Role::kActivation;
    switch (next->operation) {
      case Operation::kAttention:
        if (value == next->inputs[0]) return Role::kQueries;
        return value == next->inputs[1] ? Role::kKeys : Role::kValues;
      case Operation::kRoute:
        return Role::kScores;
      case Operation::kActivation:
      case Operation::kGate:
        return Role::kActivation;
      default:
        return Role::kResidual;
    }
  }
}

const GraphNode& ProductRoles::first_behind(const GraphNode& product, Operation operation) const {
  const GraphNode* next = consumer(product.output);
  while (next->operation != operation) next = consumer(next->output);
  return *next;
}

const GraphNode& ProductRoles::attention_of(const GraphNode& product) const {
  return first_behind(product, Operation::kAttention);
}

const GraphNode& ProductRoles::routing_of(const GraphNode& product) const {
  return first_behind(product, Operation::kRoute);
}

}  // namespace lockstep
