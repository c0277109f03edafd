#include "engine/planner/gpu_gap.h"

#include <vector>

#include "engine/operations/operation_table.h"
#include "engine/planner/split_graph.h"

namespace lockstep {
namespace {

// Whether layers have heads of different numbers or sizes.
bool has_heads_by_layer(const Graph& graph) {
  const GraphNode* first = nullptr;
  for (const GraphNode& node : graph.nodes()) {
    if (node.operation != Operation::kAttention) continue;
    if (first == nullptr) first = &node;
    const bool is_alike = node.head_count == first->head_count &&
                          node.kv_head_count == first->kv_head_count &&
                          node.head_dimension == first->head_dimension;
    if (!is_alike) return true;
  }
  return false;
}

// A part of this group's step that a GPU cannot compute.
std::optional<std::string_view> gap_of(const GroupParts& parts) {
  const OperationRow& lead = row_of(parts.graph.nodes()[parts.group.lead].operation);
  if (parts.group.nodes.size() == 1 && !lead.has_gpu_step) return lead.name;
  for (const size_t index : parts.group.nodes) {
    const GraphNode& node = parts.graph.nodes()[index];
    const OperationRow& row = row_of(node.operation);
    if (row.gpu_gap == nullptr) continue;
    if (const auto gap = row.gpu_gap(parts, node)) return gap;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string_view> find_gpu_gap(const Graph& graph, const FusionSet& without) {
  if (has_heads_by_layer(graph)) return "attention with other heads than another layer's";
  const std::vector<ValueReaders> readers = find_readers(graph);
  for (const std::vector<double>& shares : {std::vector<double>{1}, {1, 1}}) {
    const Strategy strategy = shares.size() > 1 ? Strategy::kReduce : Strategy::kGather;
    const auto split = split_graph(graph, shares, strategy);
    if (!split) continue;  // which is said where a split is to be made
    for (const Group& group : make_groups(graph, *split, without)) {
      if (auto gap = gap_of({graph, *split, readers, group})) return gap;
    }
    for (const GraphNode& node : graph.nodes()) {
      const ValueSplit& value = split->values[node.output];
      if (shares.size() > 1 && (value.gathered || value.whole)) {
        return "product or sum of columns that other GPUs compute";
      }
    }
  }
  return std::nullopt;
}

}  // namespace lockstep
