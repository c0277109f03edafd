// A product, or the sum of a mixture's experts, is added in place to the residual that alone is
// left of it.
#include <algorithm>
#include <array>

#include "engine/graph/fusion/rules.h"

namespace lockstep {
namespace {

// Whether the residual's last use is the addition: every other reader's step stands before `lead`,
// and nothing reads it after the pass.
bool is_left_to(const Groups& groups, ValueId residual, size_t addition, size_t lead) {
  const ValueReaders& readers = groups.readers(residual);
  const bool outlives_pass = residual == hidden_residual(groups.graph());
  if (outlives_pass || readers.count != readers.nodes.size()) return false;
  return std::ranges::all_of(readers.nodes, [&](size_t reader) {
    return reader == addition || groups.of(reader).lead < lead;
  });
}

void fuse_sum(Groups& groups, size_t node, Operation product) {
  const GraphNode& addition = groups.node(node);
  if (addition.operation != Operation::kAdd || !groups.is_alone(node)) return;
  const ValueId later = std::max(addition.inputs[0], addition.inputs[1]);
  if (groups.node(later).operation != product || !groups.is_alone(later)) return;
  const auto residual = start_of_sum(groups.graph(), groups.split(), groups.readers(later), later);
  if (!residual || !is_left_to(groups, *residual, node, later)) return;
  groups.join(std::array<size_t, 2>{later, node}, later);
}

}  // namespace

void fuse_residual(Groups& groups, size_t node) {
  fuse_sum(groups, node, Operation::kMatmul);
}

void fuse_mixture_sum(Groups& groups, size_t node) {
  fuse_sum(groups, node, Operation::kExpertSum);
}

}  // namespace lockstep
