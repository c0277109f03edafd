// A gate's two products and its activation are one step: of the rows that a worker has computed it
// forms the activation at once. Of a mixture's experts likewise, and of one product whose
// activation gates nothing.
#include <algorithm>
#include <array>

#include "engine/graph/fusion/rules.h"

namespace lockstep {
namespace {

// Two products of one input, cut alike, that the activation alone reads, and which products alone
// read in turn.
void fuse_gate_of(Groups& groups, size_t node, Operation product) {
  const GraphNode& activation = groups.node(node);
  if (activation.operation != Operation::kGate || !groups.is_alone(node)) return;
  const auto [gate, up] = std::array{activation.inputs[0], activation.inputs[1]};
  const auto is_part = [&](ValueId value) {
    return groups.node(value).operation == product && groups.is_alone(value) &&
           groups.readers(value).only() == node;
  };
  if (!is_part(gate) || !is_part(up) || groups.node(gate).inputs != groups.node(up).inputs) return;
  const Split& split = groups.split();
  if (split.values[gate].kind == SplitKind::kPartial ||
      split.values[gate].columns != split.values[up].columns) {
    return;
  }
  if (!only_products_read(groups.graph(), groups.readers(node), node)) return;
  groups.join(std::array<size_t, 3>{gate, up, node}, std::min(gate, up));
}

}  // namespace

void fuse_gate(Groups& groups, size_t node) {
  fuse_gate_of(groups, node, Operation::kMatmul);
}

void fuse_activation(Groups& groups, size_t node) {
  if (groups.node(node).operation != Operation::kActivation || !groups.is_alone(node)) return;
  const ValueId product = groups.node(node).inputs[0];
  if (groups.node(product).operation != Operation::kMatmul || !groups.is_alone(product)) return;
  if (groups.readers(product).only() != node) return;
  if (groups.split().values[product].kind == SplitKind::kPartial) return;
  if (!only_products_read(groups.graph(), groups.readers(node), node)) return;
  groups.join(std::array<size_t, 2>{product, node}, product);
}

void fuse_mixture_gate(Groups& groups, size_t node) {
  fuse_gate_of(groups, node, Operation::kExpertMatmul);
}

}  // namespace lockstep
