// A norm of a residual is a part of the step that has computed the residual, and the rows whose
// logits are asked for are taken where a norm reads them.
#include <array>

#include "engine/graph/fusion/rules.h"

namespace lockstep {
namespace {

bool is_factor(const Groups& groups, size_t node) {
  return is_norm_factored(groups.graph(), groups.readers(node), node);
}

}  // namespace

// A norm reads the rows of the tokens, and writes those of the logits.
void fuse_select(Groups& groups, size_t node) {
  if (groups.node(node).operation != Operation::kSelectRows) return;
  const auto norm = groups.readers(node).only();
  if (!norm || !is_factor(groups, *norm) ||
      groups.graph().rows(groups.node(node).inputs[0]) != Rows::kTokens) {
    return;
  }
  groups.join(std::array<size_t, 2>{node, *norm}, *norm);
}

// The worker that has added columns to the residual multiplies them with the norm's weight. Partial
// results have to be summed first.
void fuse_norm(Groups& groups, size_t node) {
  if (!is_factor(groups, node) || groups.of(node).lead != node) return;
  ValueId residual = groups.node(node).inputs[0];
  const bool selects = groups.of(node).nodes.size() > 1;
  if (selects) residual = groups.node(residual).inputs[0];
  if (groups.graph().rows(residual) != Rows::kTokens) return;
  const Group& group = groups.of(residual);
  if (groups.node(residual).operation != Operation::kAdd || group.nodes.size() == 1) return;
  if (groups.split().values[group.lead].kind == SplitKind::kPartial) return;
  groups.join(std::array<size_t, 2>{group.lead, node}, group.lead);
}

}  // namespace lockstep
