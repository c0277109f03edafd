#include "engine/planner/gpu_gap.h"

#include <vector>

#include "engine/operations/operation_table.h"
#include "engine/planner/split_graph.h"

namespace lockstep {
namespace {

// A part of this group's step that a GPU cannot compute.
std::optional<std::string_view> gap_of(const GroupParts& parts) {
  const OperationRow& lead = row_of(parts.graph.nodes()[parts.group.lead].operation);
  if (!lead.has_gpu_step) return lead.name;
  for (const size_t index : parts.group.nodes) {
    const GraphNode& node = parts.graph.nodes()[index];
    const OperationRow& row = row_of(node.operation);
    if (row.gpu_gap == nullptr) continue;
    if (const auto gap = row.gpu_gap(parts, node)) return gap;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string_view> find_gpu_gap(const Graph& graph, const FusionSet& without,
                                             bool alone) {
  const std::vector<ValueReaders> readers = find_readers(graph);
  std::vector<std::vector<double>> rank_sets = {{1}};
  if (!alone) rank_sets.push_back({1, 1});
  for (const std::vector<double>& shares : rank_sets) {
    const Strategy strategy = shares.size() > 1 ? Strategy::kReduce : Strategy::kGather;
    const auto split = split_graph(graph, shares, strategy);
    if (!split) continue;  // which is said where a split is to be made
    for (const Group& group : make_groups(graph, *split, without)) {
      if (auto gap = gap_of({graph, *split, readers, group})) return gap;
    }
    for (const GraphNode& node : graph.nodes()) {
      const ValueSplit& value = split->values[node.output];
      const bool is_handed_on = shares.size() > 1 && row_of(node.operation).leaves_forms &&
                                graph.rows(node.output) == Rows::kTokens;
      if ((value.whole && !is_handed_on) || (shares.size() > 1 && value.gathered)) {
        return "product or sum of columns that other GPUs compute";
      }
    }
  }
  return std::nullopt;
}

}  // namespace lockstep
