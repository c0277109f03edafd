// A plan's dependence on what is neither its graph nor its split: its options, and the device that
// runs it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/graph/activation_buffers.h"
#include "engine/graph/fusion/rules.h"
#include "engine/graph/graph.h"
#include "engine/graph/split.h"
#include "engine/kernels/gpu_panel.h"
#include "engine/kernels/profile.h"
#include "engine/machine/rank_places.h"
#include "engine/operations/plan.h"
#include "engine/tensor/format.h"

namespace lockstep {

struct PlanOptions;

// One rank's part of a plan that is being made.
struct PlanSubject {
  const Graph& graph;
  const Split& split;
  size_t rank = 0;
  const PlanOptions& options;
};

// The device: a body for processors and one for GPUs, which the planner asks at plan time alone.
// Stateless.
class PlanTarget {
 public:
  PlanTarget() = default;
  PlanTarget(const PlanTarget&) = delete;
  PlanTarget& operator=(const PlanTarget&) = delete;
  virtual ~PlanTarget() = default;

  // The size of a matrix in memory, and what each weight is aligned to.
  virtual size_t matrix_bytes(Format format, size_t rows, size_t columns) const = 0;
  virtual size_t weight_alignment() const = 0;

  // Before the steps: the device's own areas, which are never released. `kv`: the rank's.
  virtual DeviceAreas place_areas(const PlanSubject& subject, const KvLayout& kv,
                                  ActivationBuffers& activations) const = 0;
  // The same once all steps of the plan are made, behind everything else of the scratch arena.
  virtual void place_last_areas(const PlanOptions& options, Plan& plan) const = 0;

  // True where the results of a gate's products are never written: what follows takes them.
  virtual bool fuses_gate(const ExpertGateStep& step) const = 0;
  // For the step of a rank that has experts; what it needs beside its input and outputs.
  virtual std::optional<GatheredRows> place_gathered(const Forms& input,
                                                     std::span<const ExpertPart* const> parts,
                                                     const PlanOptions& options,
                                                     StepAreas& areas) const = 0;
  // `row_count`: of the step's input.
  virtual void place_products(ExpertSumStep& step, size_t row_count, const PlanOptions& options,
                              StepAreas& areas) const = 0;
};

// Matrices are PackedMatrix, areas NodeAreas.
const PlanTarget& node_plan_target();
// Matrices are GpuMatrix, areas GpuAreas.
const PlanTarget& gpu_plan_target();

// The number of query heads of a KV head, and of heads and columns that this rank computes, each in
// the layer of attention that has most of them. 0: there is no attention.
struct WidestAttention {
  size_t group = 0;
  size_t heads = 0;
  size_t columns = 0;
};
WidestAttention widest_attention(const PlanSubject& subject);

// The options that decide a plan.
struct PlanOptions {
  size_t batch_tokens = 512;  // tokens of the largest batch
  // The tokens of a batch that a GPU with layers of its own computes at once; 0: all. Activations
  // have rows for so many.
  size_t chunk_tokens = 0;
  size_t logit_rows = 64;  // rows whose logits one pass may give
  KvFormats kv_format = {};
  size_t kv_pages = 0;
  size_t state_slots = 0;  // of a model with states; 0: one per token of a pass
  bool bf16_sums = false;  // under `reduce`: partial results travel as bf16
  ProductFormTable forms = own_product_forms();
  AttentionForm prompt_attention = AttentionForm::kF32;
  size_t sequences = 0;              // of a pass at most; 0: one per token
  size_t sequence_pages = 0;         // of one group, of a sequence at most; 0: all there are
  GpuPanelLimits panel_limits = {};  // of products of prompted tokens on a GPU
  size_t workers = 1;                // of the rank: each has places of its own for experts' rows
  FusionSet without_fusion = {};     // the rules that are switched off
  const PlanTarget* target = &node_plan_target();  // the device; outlives the options

  size_t tokens_at_once() const {
    return chunk_tokens == 0 ? batch_tokens : std::min(chunk_tokens, batch_tokens);
  }
};

// These options for a rank at this place: its device's target, the number of its workers, and on a
// GPU the arithmetic that GPUs have.
PlanOptions options_on(const RankPlace& place, PlanOptions options);

}  // namespace lockstep
