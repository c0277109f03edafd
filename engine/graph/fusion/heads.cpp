// The norms and rotary positions of queries' and keys' heads are a part of attention, which treats
// what it reads.
#include <algorithm>
#include <optional>
#include <ranges>
#include <vector>

#include "engine/graph/fusion/rules.h"

namespace lockstep {
namespace {

struct Treatment {
  std::vector<size_t> nodes;     // the last one first
  std::optional<size_t> rotary;  // its table; none: there are no positions
  bool norm_is_last = false;
  std::optional<float> epsilon;  // none: there is no norm
};

// The treatment of one of attention's inputs: a norm, positions, or one of each. None: something
// else reads what would be treated in place.
std::optional<Treatment> find_treatment(const Groups& groups, ValueId input) {
  Treatment treatment;
  ValueId value = input;
  while (groups.is_alone(value)) {
    const GraphNode& node = groups.node(value);
    const bool rotates = node.operation == Operation::kRotary;
    const bool norms = node.operation == Operation::kHeadNorm && node.weight != kNone &&
                       !node.subtracts_mean && !has_own_norms(groups.graph(), node);
    if (!rotates && !norms) break;
    if (rotates ? treatment.rotary.has_value() : treatment.epsilon.has_value()) break;
    if (rotates) {
      treatment.rotary = node.rotary;
    } else {
      treatment.epsilon = node.epsilon;
      treatment.norm_is_last = false;
    }
    if (rotates && treatment.epsilon) treatment.norm_is_last = true;
    treatment.nodes.push_back(value);
    value = node.inputs[0];
    if (!groups.readers(value).only()) return std::nullopt;
  }
  return treatment;
}

// Whether both are done in one way, with which attention treats queries and keys.
bool are_alike(const Treatment& one, const Treatment& other) {
  const bool same_epsilon = !one.epsilon || !other.epsilon || *one.epsilon == *other.epsilon;
  return one.rotary == other.rotary && one.norm_is_last == other.norm_is_last && same_epsilon;
}

}  // namespace

void fuse_heads(Groups& groups, size_t node) {
  const GraphNode& attention = groups.node(node);
  if (attention.operation != Operation::kAttention) return;
  std::vector<Treatment> treatments;
  std::vector<size_t> nodes = {node};
  // Queries, and keys unless an earlier layer has stored them.
  for (const ValueId input : attention.inputs | std::views::take(2)) {
    if (groups.readers(input).only() != node) return;
    const auto treatment = find_treatment(groups, input);
    if (!treatment || (!treatments.empty() && !are_alike(treatments.front(), *treatment))) return;
    nodes.insert(nodes.end(), treatment->nodes.begin(), treatment->nodes.end());
    treatments.push_back(*treatment);
  }
  if (nodes.size() > 1) groups.join(nodes, node);
}

}  // namespace lockstep
