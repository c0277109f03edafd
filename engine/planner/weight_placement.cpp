#include "engine/planner/weight_placement.h"

#include "engine/base/checked_math.h"

namespace lockstep {
namespace {

size_t slice_bytes(const Weight& weight, Range rows, Range columns, const PlanTarget& target) {
  if (rows.empty() || columns.empty()) return 0;
  if (!weight.is_matrix) return columns.size() * sizeof(float);
  return target.matrix_bytes(weight.format, rows.size(), columns.size());
}

}  // namespace

std::vector<WeightSlice> place_weights(const Graph& graph, const Split& split, size_t rank,
                                       const PlanTarget& target) {
  std::vector<WeightSlice> slices;
  size_t offset = 0;
  for (WeightId id = 0; id < graph.weights().size(); ++id) {
    const Weight& weight = graph.weights()[id];
    const WeightSplit& held = split.weights[id];
    Range rows = {0, weight.rows};
    Range columns = {0, weight.columns};
    if (held.kind == SplitKind::kSliced) (held.by_columns ? columns : rows) = held.ranges[rank];
    const size_t bytes = slice_bytes(weight, rows, columns, target);
    slices.push_back({.weight = id,
                      .row_begin = rows.begin,
                      .row_end = rows.end,
                      .column_begin = columns.begin,
                      .column_end = columns.end,
                      .offset = offset,
                      .size_bytes = bytes});
    offset += round_up<size_t>(bytes, target.weight_alignment());
  }
  return slices;
}

size_t weight_arena_bytes(const std::vector<WeightSlice>& slices, const PlanTarget& target) {
  const size_t alignment = target.weight_alignment();
  size_t bytes = 0;
  for (const WeightSlice& slice : slices) bytes += round_up<size_t>(slice.size_bytes, alignment);
  return bytes;
}

}  // namespace lockstep
