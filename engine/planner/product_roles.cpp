#include "engine/planner/product_roles.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/operations/operation_table.h"

namespace lockstep {
namespace {

class HeldProducts {
 public:
  HeldProducts(const Graph& graph, const ProductRoles& roles, const Split& split,
               std::set<ValueId>& held)
      : graph_(graph), roles_(roles), split_(split), held_(held), seen_(graph.value_count()) {}

  // Follows what is cut back to the products that it comes from.
  void follow(ValueId value) {
    if (split_.values[value].kind != SplitKind::kSliced || seen_[value]) return;
    seen_[value] = true;
    const GraphNode& node = graph_.producer(value);
    if (is_product(node)) {
      if (is_held(node)) held_.insert(value);
      return;
    }
    for (const ValueId input : node.inputs) follow(input);
  }

 private:
  // Ranks compute their own heads and columns of a feed-forward, whose matrices are large. A
  // ranking head's are small.
  bool is_held(const GraphNode& product) const {
    if (product.operation != Operation::kMatmul) return false;
    if (split_.values[product.inputs[0]].kind != SplitKind::kMirrored) return false;
    const Role role = roles_.role_of(product);
    const bool is_of_head = role == Role::kActivation &&
                            graph_.rows(product.output) == Rows::kLogits &&
                            roles_.consumer(product.output)->operation == Operation::kActivation;
    return role == Role::kResidual || is_of_head;
  }

  const Graph& graph_;
  const ProductRoles& roles_;
  const Split& split_;
  std::set<ValueId>& held_;
  std::vector<bool> seen_;  // by value
};

}  // namespace

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

bool add_held_products(const Graph& graph, const ProductRoles& roles, const Split& split,
                       std::set<ValueId>& held) {
  const size_t before = held.size();
  HeldProducts found(graph, roles, split, held);
  for (ValueId value = 0; value < graph.value_count(); ++value) {
    if (split.values[value].gathered || split.values[value].whole) found.follow(value);
  }
  return held.size() > before;
}

}  // namespace lockstep
