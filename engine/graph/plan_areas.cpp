#include "engine/graph/plan_areas.h"

#include <algorithm>

#include "engine/base/checked_math.h"
#include "engine/kernels/attention.h"
#include "engine/kernels/gpu_batch.h"
#include "engine/kernels/gpu_candidates.h"
#include "engine/kernels/gpu_draw.h"
#include "engine/kernels/gpu_matrix_library.h"

namespace lockstep {
namespace {

// The most query heads of a KV head, and columns of attention that this rank computes, of any
// layer.
struct Widest {
  size_t group = 0;
  size_t columns = 0;
};

Widest widest_attention(const Graph& graph, const Split& split, size_t rank) {
  Widest widest;
  for (const GraphNode& node : graph.nodes()) {
    if (node.operation != Operation::kAttention) continue;
    widest.group = std::max(widest.group, node.head_count / node.kv_head_count);
    const ValueSplit& value = split.values[node.output];
    const size_t columns =
        value.kind == SplitKind::kSliced ? value.columns[rank].size() : graph.columns(node.output);
    widest.columns = std::max(widest.columns, columns);
  }
  return widest;
}

// The largest panel of any product.
struct PanelSize {
  size_t rows = 0;
  size_t elements = 0;
};

void include_panels(const MatmulStep& step, const GpuPanelLimits& limits, PanelSize& largest) {
  if (step.rows != Rows::kTokens) return;
  size_t rows = 0;
  size_t columns = 0;
  for (const MatmulPart& part : step.parts) {
    if (part.forms.prompted != ActivationForm::kBf16) continue;
    rows += round_up(part.matrix.rows, kGpuPanelStep);
    columns = part.matrix.columns;
  }
  rows = std::min(rows, gpu_panel_rows_max(columns, limits));
  largest.rows = std::max(largest.rows, rows);
  largest.elements = std::max(largest.elements, rows * gpu_panel_columns(columns));
}

size_t most_sequences(const PlanOptions& options) {
  return options.sequences == 0 ? options.batch_tokens : options.sequences;
}

}  // namespace

AttentionPartials place_partials(const Graph& graph, const Split& split, size_t rank,
                                 const PlanOptions& options, const KvLayout& kv,
                                 ValueBuffers& values) {
  AttentionPartials partials;
  const Widest widest = widest_attention(graph, split, rank);
  if (widest.group == 0 || kv.head_count == 0) return partials;
  const size_t tokens = std::min(kSplitTokens, options.batch_tokens);
  const bool on_gpu = options.weight_layout == WeightLayout::kGpuTiles;
  if (on_gpu) {
    const size_t most = std::max(tokens, most_sequences(options));
    partials.block_count = std::min(tokens + options.kv_pages, most * kGpuTokenUnits);
  } else {
    constexpr size_t kChunkPages = kAttentionChunkTokens / kPageTokens;
    partials.block_count = tokens + divide_up(options.kv_pages, kChunkPages);
  }
  const auto place = [&](size_t columns, size_t rows) {
    return values.activations().allocate_f32(Arena::kScratch, columns, rows);
  };
  if (on_gpu) {
    partials.rows = values.at<float>(place(widest.columns, partials.block_count));
    partials.stride = widest.columns;
    const size_t heads = widest.columns / kv.head_dimension;
    partials.sums = values.at<float>(place(2 * heads, partials.block_count));
    partials.arrived = values.at<uint32_t>(place(heads, partials.block_count));
    return partials;
  }
  partials.stride = attention_partial_floats(widest.group, kv.head_dimension);
  partials.rows = values.at<float>(place(partials.stride, partials.block_count * kv.head_count));
  partials.arrived = values.at<uint32_t>(place(kv.head_count, tokens));
  return partials;
}

Routing place_routing(const Graph& graph, const PlanOptions& options, ValueBuffers& values) {
  Routing routing;
  for (const GraphNode& node : graph.nodes()) {
    routing.expert_count = std::max(routing.expert_count, node.expert_count);
  }
  if (routing.expert_count == 0) return routing;
  const size_t rows = options.batch_tokens * graph.chosen_experts();
  const auto place = [&]<typename T>(T*& area, size_t count) {
    static_assert(sizeof(T) == sizeof(float));
    area = values.at<T>(values.activations().allocate_f32(Arena::kScratch, count, 1));
  };
  place(routing.chosen, rows);
  place(routing.weights, rows);
  place(routing.row_begin, routing.expert_count + 1);
  place(routing.row_tokens, rows);
  if (options.weight_layout == WeightLayout::kGpuTiles) {
    place(routing.choice_rows, rows);
  } else {
    place(routing.generated_end, routing.expert_count);
    place(routing.row_weights, rows);
  }
  return routing;
}

GpuAreas place_gpu_areas(const Graph& graph, const PlanOptions& options, size_t attention_blocks,
                         bool finds_candidates, ValueBuffers& values) {
  const size_t tokens = options.batch_tokens;
  const size_t sequences = most_sequences(options);
  const size_t pages = options.sequence_pages == 0 ? options.kv_pages : options.sequence_pages;
  GpuAreas areas;
  areas.limits = {.tokens = tokens,
                  .sequences = sequences,
                  .pages = sequences * pages,
                  .logits = options.logit_rows,
                  .attention_units = attention_blocks};
  const auto place = [&](size_t bytes) {
    return values.activations().allocate_f32(Arena::kScratch,
                                             (bytes + sizeof(float) - 1) / sizeof(float), 1);
  };
  areas.batch = values.at<std::byte>(place(gpu_batch_bytes(areas.limits)));
  if (finds_candidates) {
    const size_t columns = graph.columns(graph.logits());
    const size_t rows = options.logit_rows;
    areas.candidate_words =
        values.at<uint32_t>(place(rows * gpu_candidate_words(columns) * sizeof(uint32_t)));
    areas.logit_maxima = values.at<float>(place(rows * sizeof(float)));
    areas.draw_sums = values.at<double>(place(rows * gpu_draw_blocks(columns) * sizeof(double)));
  }
  const size_t frequencies = graph.rotary_parameters().frequencies.size();
  if (frequencies > 0) areas.frequencies = values.at<double>(place(frequencies * sizeof(double)));
  return areas;
}

void place_panel_areas(const GpuPanelLimits& limits, uintptr_t scratch, Plan& plan) {
  PanelSize largest;
  for (const Step& step : plan.steps) {
    if (const auto* product = std::get_if<MatmulStep>(&step.work)) {
      include_panels(*product, limits, largest);
    }
  }
  plan.gpu.panel_limits = limits;
  if (largest.rows == 0) return;
  constexpr size_t kAlignment = 256;  // the arena's as well
  const auto place = [&](size_t bytes) {
    const size_t offset = round_up(plan.scratch_bytes, kAlignment);
    plan.scratch_bytes = offset + bytes;
    return scratch + offset;
  };
  plan.gpu.panel = reinterpret_cast<uint16_t*>(place(largest.elements * sizeof(uint16_t)));
  plan.gpu.panel_sums =
      reinterpret_cast<float*>(place(plan.batch_tokens * largest.rows * sizeof(float)));
  plan.gpu.library = reinterpret_cast<std::byte*>(place(kGpuLibraryBytes));
}

}  // namespace lockstep
