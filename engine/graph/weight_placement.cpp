#include "engine/graph/weight_placement.h"

#include "engine/base/check.h"
#include "engine/kernels/gpu_matrix.h"

namespace lockstep {
namespace {

size_t slice_bytes(const Weight& weight, Range rows, Range columns, WeightLayout layout) {
  if (rows.empty() || columns.empty()) return 0;
  if (!weight.is_matrix) return columns.size() * sizeof(float);
  if (layout == WeightLayout::kGpuTiles) {
    return gpu_matrix_bytes(weight.format, rows.size(), columns.size());
  }
  const size_t panels = (rows.size() + kPanelRows - 1) / kPanelRows;
  return panels * panel_bytes(weight.format, columns.size());
}

}  // namespace

std::vector<WeightSlice> place_weights(const Graph& graph, const Split& split, size_t rank,
                                       uintptr_t base, WeightLayout layout) {
  std::vector<WeightSlice> slices;
  uintptr_t address = base;
  for (WeightId id = 0; id < graph.weights().size(); ++id) {
    const Weight& weight = graph.weights()[id];
    const WeightSplit& held = split.weights[id];
    Range rows = {0, weight.rows};
    Range columns = {0, weight.columns};
    if (held.kind == SplitKind::kSliced) (held.by_columns ? columns : rows) = held.ranges[rank];
    const size_t bytes = slice_bytes(weight, rows, columns, layout);
    slices.push_back({.weight = id,
                      .row_begin = rows.begin,
                      .row_end = rows.end,
                      .column_begin = columns.begin,
                      .column_end = columns.end,
                      .address = reinterpret_cast<std::byte*>(address),
                      .size_bytes = bytes});
    address += round_up<size_t>(bytes, weight_alignment(layout));
  }
  return slices;
}

size_t weight_alignment(WeightLayout layout) {
  return layout == WeightLayout::kGpuTiles ? 256 : 64;
}

size_t weight_arena_bytes(const std::vector<WeightSlice>& slices, WeightLayout layout) {
  const size_t alignment = weight_alignment(layout);
  size_t bytes = 0;
  for (const WeightSlice& slice : slices) bytes += round_up<size_t>(slice.size_bytes, alignment);
  return bytes;
}

KvLayout place_kv(const Graph& graph, const Split& split, size_t rank, KvFormat format,
                  size_t page_count, uintptr_t base) {
  KvLayout kv;
  kv.format = format;
  kv.page_count = page_count;
  kv.base = reinterpret_cast<std::byte*>(base);
  for (const GraphNode& node : graph.nodes()) {
    if (node.operation != Operation::kAttention) continue;
    const size_t heads = split.values[node.inputs[1]].columns[rank].size() / node.head_dimension;
    CHECK(kv.layer_count == 0 || kv.head_count == heads,
          "layer {} has {} KV heads on rank {}, the one before {}", kv.layer_count, heads, rank,
          kv.head_count);
    ++kv.layer_count;
    kv.head_count = heads;
    kv.head_dimension = node.head_dimension;
  }
  return kv;
}

}  // namespace lockstep
