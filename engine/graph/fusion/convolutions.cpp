// A convolution and the activation of its results are one step, and so are all convolutions that
// one delta net or scan reads.
#include <algorithm>
#include <array>
#include <ranges>
#include <vector>

#include "engine/graph/fusion/rules.h"

namespace lockstep {
namespace {

void join_activation(Groups& groups, size_t node) {
  const ValueId sums = groups.node(node).inputs[0];
  if (groups.node(sums).operation != Operation::kConvolution) return;
  if (!groups.is_alone(node) || !groups.is_alone(sums)) return;
  if (groups.readers(sums).only() != node) return;
  const ValueSplit& convolved = groups.split().values[sums];
  const ValueSplit& activated = groups.split().values[node];
  if (convolved.kind != activated.kind || convolved.columns != activated.columns) return;
  groups.join(std::array<size_t, 2>{sums, node}, sums);
}

void join_inputs(Groups& groups, size_t node) {
  std::vector<size_t> convolutions;
  for (const ValueId input : groups.node(node).inputs | std::views::take(3)) {
    const size_t lead = groups.of(input).lead;
    const bool convolves = groups.node(lead).operation == Operation::kConvolution;
    if (convolves && groups.readers(input).only() == node) convolutions.push_back(lead);
  }
  if (convolutions.size() > 1) groups.join(convolutions, std::ranges::max(convolutions));
}

}  // namespace

void fuse_convolutions(Groups& groups, size_t node) {
  if (groups.node(node).operation == Operation::kActivation) join_activation(groups, node);
  const Operation operation = groups.node(node).operation;
  if (operation == Operation::kDeltaNet || operation == Operation::kScan) {
    join_inputs(groups, node);
  }
}

}  // namespace lockstep
