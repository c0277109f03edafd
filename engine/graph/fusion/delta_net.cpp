// A part of a delta net's step are the slices that give it its heads' factors, and, if all of it is
// a norm and a gate, what is made of its results.
#include <algorithm>
#include <optional>
#include <ranges>
#include <vector>

#include "engine/graph/fusion/rules.h"

namespace lockstep {
namespace {

bool have_all_ranks_all(const Groups& groups, ValueId value) {
  if (groups.split().is_by_layers()) return true;
  const ValueSplit& split = groups.split().values[value];
  const Range all = {0, groups.graph().columns(value)};
  return split.kind == SplitKind::kMirrored ||
         std::ranges::all_of(split.columns, [&](const Range& own) { return own == all; });
}

// Those of beta and alpha, of what every rank that computes the net has.
void add_slices(const Groups& groups, size_t net, std::vector<size_t>& nodes) {
  for (const ValueId factors : groups.node(net).inputs | std::views::drop(3)) {
    const GraphNode& node = groups.node(factors);
    if (node.operation != Operation::kSliceHeads || !groups.is_alone(factors)) continue;
    if (groups.readers(factors).only() != net) continue;
    if (!have_all_ranks_all(groups, node.inputs[0])) continue;
    // A head's columns have to follow one another in what is sliced.
    const size_t each = groups.graph().columns(factors) / node.head_count;
    if (each % (groups.graph().columns(factors) / groups.node(net).head_count) != 0) continue;
    nodes.push_back(factors);
  }
}

// Whether it is the delta net's heads that are normed, all with one weight.
bool norms_heads(const Groups& groups, const GraphNode& norm, const GraphNode& net) {
  return norm.operation == Operation::kHeadNorm && norm.weight != kNone && !norm.subtracts_mean &&
         !has_own_norms(groups.graph(), norm) && norm.head_dimension == net.value_dimension;
}

void add_gate(const Groups& groups, size_t net, std::vector<size_t>& nodes) {
  if (groups.node(net).value_dimension > kMostGatedDimensions) return;
  const std::optional<size_t> norm = groups.readers(net).only();
  if (!norm || !groups.is_alone(*norm)) return;
  if (!norms_heads(groups, groups.node(*norm), groups.node(net))) return;
  const std::optional<size_t> gate = groups.readers(*norm).only();
  if (!gate || !groups.is_alone(*gate)) return;
  const GraphNode& gating = groups.node(*gate);
  if (gating.operation != Operation::kGate || gating.inputs[1] != *norm) return;
  if (groups.of(gating.inputs[0]).lead > net) return;  // what opens it is computed later
  const ValueSplit& given = groups.split().values[net];
  const ValueSplit& gated = groups.split().values[*gate];
  if (given.kind != gated.kind || given.columns != gated.columns) return;
  nodes.push_back(*norm);
  nodes.push_back(*gate);
}

}  // namespace

void fuse_delta_net(Groups& groups, size_t node) {
  if (groups.node(node).operation != Operation::kDeltaNet) return;
  std::vector<size_t> nodes = {node};
  add_slices(groups, node, nodes);
  add_gate(groups, node, nodes);
  if (nodes.size() > 1) groups.join(nodes, node);
}

}  // namespace lockstep
