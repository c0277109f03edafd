// Plans for processors.
#include <algorithm>

#include "engine/base/checked_math.h"
#include "engine/kernels/attention.h"
#include "engine/kernels/packed_matrix.h"
#include "engine/operations/plan_target.h"

namespace lockstep {
namespace {

// One area for all layers: a layer's chunks are merged before the next layer's begin. The capacity
// is every chunk of all the cache's pages, and a shared one per token.
NodePartials place_node_partials(const PlanSubject& subject, const KvLayout& kv,
                                 ActivationBuffers& activations) {
  NodePartials partials;
  const WidestAttention widest = widest_attention(subject);
  const size_t kv_heads = kv.most_heads();
  if (widest.group == 0 || kv_heads == 0) return partials;
  constexpr size_t kChunkPages = kAttentionChunkTokens / kPageTokens;
  const size_t tokens = std::min(kSplitTokens, subject.options.batch_tokens);
  partials.block_count = tokens + divide_up(subject.options.kv_pages, kChunkPages);
  partials.stride = attention_partial_floats(widest.group, kv.widest_value());
  partials.rows =
      activations.allocate_f32(Arena::kScratch, partials.stride, partials.block_count * kv_heads)
          .at<float>();
  partials.arrived = activations.allocate_f32(Arena::kScratch, kv_heads, tokens).at<uint32_t>();
  return partials;
}

class NodePlanTarget final : public PlanTarget {
 public:
  size_t matrix_bytes(Format format, size_t rows, size_t columns) const override {
    return divide_up(rows, kPanelRows) * panel_bytes(format, columns);
  }
  size_t weight_alignment() const override { return 64; }

  DeviceAreas place_areas(const PlanSubject& subject, const KvLayout& kv,
                          ActivationBuffers& activations) const override {
    NodeAreas areas;
    areas.partials = place_node_partials(subject, kv, activations);
    const size_t experts = subject.graph.most_experts();
    if (experts == 0) return areas;
    const size_t rows = subject.options.batch_tokens * subject.graph.chosen_experts();
    areas.generated_end = activations.allocate_f32(Arena::kScratch, experts, 1).at<uint32_t>();
    areas.row_weights = activations.allocate_f32(Arena::kScratch, rows, 1).at<float>();
    return areas;
  }
  void place_last_areas(const PlanOptions&, Plan&) const override {}

  bool fuses_gate(const ExpertGateStep&) const override { return false; }

  // In the forms in which the experts read their input.
  std::optional<GatheredRows> place_gathered(const Forms& input,
                                             std::span<const ExpertPart* const> parts,
                                             const PlanOptions& options,
                                             StepAreas& areas) const override {
    GatheredRows gathered;
    gathered.workers = options.workers;
    gathered.rows.columns = input.columns;
    for (const ExpertPart* part : parts) {
      for (const ActivationForm form : {part->forms.prompted, part->forms.generated}) {
        FormBuffer& buffer = gathered.rows[form];
        if (buffer.is_read()) continue;
        const Stretch rows =
            areas.take(form, Arena::kScratch, input.columns, kExpertRows * options.workers);
        buffer = input[form];
        buffer.rows = rows.at<std::byte>();
        buffer.stride_bytes = rows.stride_bytes;
      }
    }
    return gathered;
  }

  void place_products(ExpertSumStep& step, size_t, const PlanOptions& options,
                      StepAreas& areas) const override {
    const Stretch rows =
        areas.take_f32(Arena::kScratch, kExpertSumColumns, kExpertRows * options.workers);
    step.products = WorkerProducts{rows.at<float>(), rows.floats(), options.workers};
  }
};

}  // namespace

const PlanTarget& node_plan_target() {
  static const NodePlanTarget target;
  return target;
}

}  // namespace lockstep
