#include "engine/graph/fusion/groups.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace lockstep {

Groups::Groups(const Graph& graph, const Split& split)
    : graph_(graph), split_(split), readers_(find_readers(graph)) {
  for (size_t node = 0; node < graph.nodes().size(); ++node) {
    groups_.push_back({.lead = node, .nodes = {node}});
    group_of_.push_back(node);
  }
}

bool Groups::stands_in_order(const Group& group) const {
  const auto is_member = [&](size_t node) { return std::ranges::binary_search(group.nodes, node); };
  for (const size_t member : group.nodes) {
    for (const ValueId input : node(member).inputs) {
      if (!is_member(input) && of(input).lead >= group.lead) return false;
    }
    for (const size_t reader : readers_[member].nodes) {
      if (!is_member(reader) && of(reader).lead <= group.lead) return false;
    }
  }
  return true;
}

bool Groups::is_one_owners(const Group& group) const {
  const std::vector<size_t>& owners = split_.owners;
  return owners.empty() || std::ranges::all_of(group.nodes, [&](size_t node) {
           return owners[node] == owners[group.lead];
         });
}

bool Groups::join(std::span<const size_t> nodes, size_t lead) {
  Group joined{.lead = lead, .nodes = {}};
  for (const size_t node : nodes) {
    const std::vector<size_t>& others = of(node).nodes;
    joined.nodes.insert(joined.nodes.end(), others.begin(), others.end());
  }
  std::ranges::sort(joined.nodes);
  const auto repeated = std::ranges::unique(joined.nodes);
  joined.nodes.erase(repeated.begin(), repeated.end());
  CHECK(std::ranges::binary_search(joined.nodes, lead), "node {} leads a group without it", lead);
  if (!stands_in_order(joined) || !is_one_owners(joined)) return false;
  for (const size_t node : joined.nodes) groups_[group_of_[node]].nodes.clear();
  for (const size_t node : joined.nodes) group_of_[node] = lead;
  groups_[lead] = std::move(joined);
  return true;
}

std::vector<Group> Groups::in_order() const {
  std::vector<Group> ordered;
  for (const Group& group : groups_) {
    if (!group.nodes.empty()) ordered.push_back(group);
  }
  std::ranges::sort(ordered, {}, &Group::lead);
  return ordered;
}

std::vector<size_t> nodes_of(const Graph& graph, const Group& group, Operation operation) {
  std::vector<size_t> found;
  for (const size_t node : group.nodes) {
    if (graph.nodes()[node].operation == operation) found.push_back(node);
  }
  return found;
}

std::optional<size_t> node_of(const Graph& graph, const Group& group, Operation operation) {
  const auto found = nodes_of(graph, group, operation);
  return found.empty() ? std::nullopt : std::optional(found.front());
}

bool only_products_read(const Graph& graph, const ValueReaders& readers, ValueId value) {
  return readers.count == readers.nodes.size() &&
         std::ranges::all_of(readers.nodes, [&](size_t reader) {
           return multiplied_weight(graph.nodes()[reader], value) != kNone;
         });
}

bool is_norm_factored(const Graph& graph, const ValueReaders& readers, size_t node) {
  const GraphNode& norm = graph.nodes()[node];
  // A product of heads reads some columns, and has not all sums of their norm.
  const auto is_of_heads = [&](size_t reader) {
    return graph.nodes()[reader].operation == Operation::kHeadMatmul;
  };
  return norm.operation == Operation::kRmsNorm && norm.weight != kNone &&
         only_products_read(graph, readers, norm.output) &&
         std::ranges::none_of(readers.nodes, is_of_heads);
}

std::optional<size_t> logits_product(const Graph& graph) {
  if (graph.logits() == kNone) return std::nullopt;
  const GraphNode* node = &graph.producer(graph.logits());
  while (node->operation == Operation::kScale || node->operation == Operation::kSoftCap) {
    node = &graph.producer(node->inputs[0]);
  }
  return node->operation == Operation::kMatmul ? std::optional(node->output) : std::nullopt;
}

std::optional<ValueId> hidden_residual(const Graph& graph) {
  const auto product = logits_product(graph);
  if (!product) return std::nullopt;
  const GraphNode& norm = graph.producer(graph.nodes()[*product].inputs[0]);
  if (norm.operation != Operation::kRmsNorm || norm.weight == kNone) return std::nullopt;
  const GraphNode& selection = graph.producer(norm.inputs[0]);
  const bool selects = selection.operation == Operation::kSelectRows;
  const ValueId residual = selects ? selection.inputs[0] : norm.inputs[0];
  return graph.rows(residual) == Rows::kTokens ? std::optional(residual) : std::nullopt;
}

std::optional<ValueId> start_of_sum(const Graph& graph, const Split& split,
                                    const ValueReaders& readers, ValueId sum) {
  const auto reader = readers.only();
  if (!reader || graph.nodes()[*reader].operation != Operation::kAdd) return std::nullopt;
  const std::vector<ValueId>& operands = graph.nodes()[*reader].inputs;
  const ValueId start = operands[0] == sum ? operands[1] : operands[0];
  if (start >= sum || graph.rows(start) != graph.rows(sum)) return std::nullopt;
  if (split.is_by_layers()) return start;  // a rank has all of what it adds
  const ValueSplit& own = split.values[sum];
  const ValueSplit& other = split.values[start];
  if (other.kind == SplitKind::kPartial) return std::nullopt;
  const bool is_alike = other.kind == SplitKind::kMirrored ||
                        (own.kind == SplitKind::kSliced && own.columns == other.columns);
  return is_alike ? std::optional(start) : std::nullopt;
}

}  // namespace lockstep
