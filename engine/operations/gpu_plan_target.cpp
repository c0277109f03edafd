// Plans for GPUs.
#include <algorithm>

#include "engine/base/checked_math.h"
#include "engine/kernels/gpu_candidates.h"
#include "engine/kernels/gpu_draw.h"
#include "engine/kernels/gpu_matrix.h"
#include "engine/kernels/gpu_matrix_library.h"
#include "engine/operations/gpu_constants.h"
#include "engine/operations/plan_target.h"

namespace lockstep {
namespace {

// The alignment of the areas behind all others; the arena's is no less.
constexpr size_t kLastAlignment = 256;

size_t most_sequences(const PlanOptions& options) {
  return options.sequences == 0 ? options.batch_tokens : options.sequences;
}

// A unit for every page of the cache and one per token, or all units that a token of each sequence
// can have, if these are fewer. A unit has no key behind its token's.
size_t most_units(const Graph& graph, const PlanOptions& options) {
  if (graph.sees_ahead()) return 0;
  const size_t tokens = std::min(kSplitTokens, options.tokens_at_once());
  const size_t most = std::max(tokens, most_sequences(options));
  return std::min(tokens + options.kv_pages, most * kGpuTokenUnits);
}

// One area for all layers: a layer's units are merged before the next layer's begin.
GpuPartials place_gpu_partials(const PlanSubject& subject, const KvLayout& kv,
                               ActivationBuffers& activations) {
  GpuPartials partials;
  const WidestAttention widest = widest_attention(subject);
  const size_t units = most_units(subject.graph, subject.options);
  if (widest.group == 0 || kv.most_heads() == 0 || units == 0) return partials;
  partials.unit_count = units;
  partials.head_count = widest.heads;
  const auto place = [&](size_t columns) {
    return activations.allocate_f32(Arena::kScratch, columns, partials.unit_count);
  };
  partials.rows = place(widest.columns).at<float>();
  partials.sums = place(2 * partials.head_count).at<float>();
  partials.arrived = place(partials.head_count).at<uint32_t>();
  return partials;
}

bool looks_segments_up(const Graph& graph) {
  return std::ranges::any_of(graph.nodes(), [](const GraphNode& node) {
    return node.operation == Operation::kEmbed && node.index == EmbedIndex::kSegment;
  });
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

class GpuPlanTarget final : public PlanTarget {
 public:
  size_t matrix_bytes(Format format, size_t rows, size_t columns) const override {
    return gpu_matrix_bytes(format, rows, columns);
  }
  size_t weight_alignment() const override { return 256; }

  DeviceAreas place_areas(const PlanSubject& subject, const KvLayout& kv,
                          ActivationBuffers& activations) const override {
    const auto& [graph, split, rank, options] = subject;
    GpuAreas areas;
    areas.partials = place_gpu_partials(subject, kv, activations);
    const auto place = [&](size_t bytes) {
      return activations.allocate_f32(Arena::kScratch, divide_up(bytes, sizeof(float)), 1);
    };
    if (graph.most_experts() > 0) {
      const size_t rows = options.tokens_at_once() * graph.chosen_experts();
      areas.choice_rows = place(rows * sizeof(uint32_t)).at<uint32_t>();
    }
    const size_t sequences = most_sequences(options);
    const size_t pages = options.sequence_pages == 0 ? options.kv_pages : options.sequence_pages;
    areas.limits = {.tokens = options.tokens_at_once(),
                    .sequences = sequences,
                    .pages = sequences * pages,
                    .groups = kv.group_count(),
                    .logits = options.logit_rows,
                    .attention_units = areas.partials.unit_count,
                    .lengths = graph.sees_ahead() ? sequences : 0,
                    .segments = looks_segments_up(graph) ? options.tokens_at_once() : 0};
    // A rank of layers without attention has the batches of all others, and their recordings.
    if (split.is_by_layers()) areas.limits.attention_units = most_units(graph, options);
    areas.batch = place(gpu_batch_bytes(areas.limits)).at<std::byte>();
    if (rank == 0) {
      const size_t columns = graph.columns(graph.logits());
      const size_t rows = options.logit_rows;
      areas.candidate_words =
          place(rows * gpu_candidate_words(columns) * sizeof(uint32_t)).at<uint32_t>();
      areas.logit_maxima = place(rows * sizeof(float)).at<float>();
      areas.draw_sums = place(rows * gpu_draw_blocks(columns) * sizeof(double)).at<double>();
      areas.picks = place(rows * sizeof(uint32_t)).at<uint32_t>();
      areas.candidate_bytes = rows * (sizeof(GpuCandidateRow) + sizeof(GpuDrawn));
    }
    size_t frequencies = 0;
    for (const Rotary& rotary : graph.rotaries()) frequencies += rotary.frequencies.size();
    if (frequencies > 0) areas.frequencies = place(frequencies * sizeof(double)).at<double>();
    return areas;
  }

  // The plan's products of prompted tokens say how large a panel is.
  void place_last_areas(const PlanOptions& options, Plan& plan) const override {
    auto& areas = std::get<GpuAreas>(plan.areas);
    areas.panel_limits = options.panel_limits;
    const auto place = [&](size_t bytes) {
      const size_t offset = round_up(plan.scratch_bytes, kLastAlignment);
      plan.scratch_bytes = offset + bytes;
      return offset;
    };
    if (const size_t count = gpu_constants(plan).size(); count > 0) {
      areas.constants = {Arena::kScratch, place(count * sizeof(float))};
    }
    PanelSize largest;
    for (const Step& step : plan.steps) {
      if (const auto* product = std::get_if<MatmulStep>(&step.work)) {
        include_panels(*product, options.panel_limits, largest);
      }
    }
    if (largest.rows == 0) return;
    areas.panel = {Arena::kScratch, place(largest.elements * sizeof(uint16_t))};
    areas.panel_sum_floats = plan.chunk_tokens * largest.rows;
    areas.panel_sums = {Arena::kScratch, place(areas.panel_sum_floats * sizeof(float))};
    areas.library = {Arena::kScratch, place(kGpuLibraryBytes)};
  }

  bool fuses_gate(const ExpertGateStep& step) const override {
    return step.is_one_product_on_gpus();
  }
  std::optional<GatheredRows> place_gathered(const Forms&, std::span<const ExpertPart* const>,
                                             const PlanOptions&, StepAreas&) const override {
    return std::nullopt;
  }
  void place_products(ExpertSumStep& step, size_t row_count, const PlanOptions&,
                      StepAreas& areas) const override {
    const Stretch rows =
        areas.take_f32(Arena::kScratch, step.down.matrices.front().rows, row_count);
    step.products = RowProducts{rows.at<float>(), rows.floats()};
  }
};

}  // namespace

const PlanTarget& gpu_plan_target() {
  static const GpuPlanTarget target;
  return target;
}

}  // namespace lockstep
