// A plan's steps as a GPU's launches.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/operations/gpu_constants.h"
#include "engine/runtime/gpu/gpu_program.h"
#include "engine/runtime/gpu/gpu_value_launches.h"

namespace lockstep {
class GpuProgram::Builder {
 public:
  Builder(const Plan& plan, const ArenaAddresses& addresses, const Peers& peers,
          const GpuLinks& links, const float* given_rows, std::vector<Launch>& launches)
      : plan_(plan),
        areas_(std::get<GpuAreas>(plan.areas)),
        addresses_(addresses),
        peers_(peers),
        batch_(gpu_batch_at(at(areas_.batch), areas_.limits)),
        values_(addresses, batch_, at(areas_.choice_rows), given_rows, plan.rank_count == 1),
        links_(links),
        launches_(launches) {}

  // Finds those of the step that is added next.
  void find_constants(const StepWork& step) {
    const size_t count = gpu_constants(step).size();
    constants_ = count == 0 ? nullptr : at(areas_.constants + constant_count_);
    constant_count_ += count;
  }

  // Pages need not be cleared: no slot is read that has not been written.
  void add(const ClearPagesStep&) {}
  // Copies that are no kernel's.
  void add(const HandOverStep&) {}

  void add(const RotaryTableStep& step) {
    const ArenaOffset<double> frequencies = areas_.frequencies + frequency_count_;
    frequency_count_ += step.frequencies.size();
    launches_.emplace_back(GpuRotaryTable{.batch = batch_,
                                          .frequencies = at(frequencies),
                                          .pairs = step.frequencies.size(),
                                          .table = at(step.table),
                                          .stride = step.stride,
                                          .magnitude = step.magnitude});
  }

  void add(const EmbedStep& step) {
    launches_.emplace_back(GpuEmbedding{.batch = batch_,
                                        .table = matrix_at(step.table),
                                        .ids = ids_of(step.index),
                                        .picks = at(areas_.picks),
                                        .row_begin = step.row_begin,
                                        .output = at(step.output),
                                        .output_stride = step.output_stride});
    if (!step.gather || !is_linked()) return;
    auto& embedding = std::get<GpuEmbedding>(launches_.back());
    if (!links_.peers) {
      embedding.others_zero = true;
      launches_.emplace_back(Join{at(step.output), step.output_stride});
      return;
    }
    // Rows that another rank writes are there once all have met.
    add_copies(step.output, embedding);
    launches_.emplace_back(RankBarrier{});
  }

  void add(const GivenRowsStep& step) { launches_.emplace_back(values_.launch(step)); }

  void add(const NormStep& step) {
    if (Sum* const sum = sum_of(step); sum != nullptr) {
      add_norm(step.norm, sum->sum);
      sum->norms.push_back(norm_rows_of(step));
    } else {
      launches_.emplace_back(norm_rows_of(step));
    }
  }

  // A residual that becomes one rank's has no columns on others.
  void add(const FormStep& step) {
    if (step.output.gather && is_linked()) return add_gathered(step);
    add_columns(step);
  }
  void add(const ElementwiseStep& step) { add_columns(step); }
  // A part of the kernel of the step behind it where the rank norms all columns. Else its own sums
  // are a launch, or, where ranks have parts, every rank gets the others': over peer memory all
  // ranks meet, by NCCL they are joined behind this step, and the worker sends them to processors.
  void add(const NormSumsStep& step) {
    norm_sums_ = &step;
    if (!step.gather || is_joined()) return;
    if (step.columns > 0) {
      GpuChunkSums sums = values_.launch(step);
      if (links_.peers) add_copies(step.chunks.sums, sums);
      launches_.emplace_back(sums);
    }
    if (links_.peers) launches_.emplace_back(RankBarrier{});
  }
  void add(const NormScaleStep& step) {
    if (norm_sums_->gather && is_joined()) {
      const ChunkSums& all = step.norm.chunks;
      GpuChunkSums sums = values_.launch(*norm_sums_);
      sums.first = (norm_sums_->chunks.sums.bytes - all.sums.bytes) / sizeof(float);
      sums.sums = at(all.sums);
      sums.all_chunks = divide_up(step.norm.columns, kChunkColumns);
      launches_.emplace_back(sums);
      launches_.emplace_back(Join{at(all.sums), all.stride});
    }
    if (step.columns == 0) return;
    const bool has_all = step.columns == step.norm.columns;
    if (!norm_sums_->gather && !has_all) launches_.emplace_back(values_.launch(*norm_sums_));
    launches_.emplace_back(values_.launch(step, *norm_sums_));
  }
  void add(const CopyHeadsStep& step) { add_columns(step); }
  void add(const MeanStep& step) { add_columns(step); }
  void add(const HeadsStep& step) {
    if (step.head_count > 0) launches_.emplace_back(values_.launch(step));
  }

  void add(const MatmulStep& step) {
    const auto* gate = std::get_if<GateFinish>(&step.finish);
    const bool fused_gate = gate != nullptr && is_fused_gate(*gate, step.parts);
    // Parts that consume one form are one product, or several where there are so many.
    for (size_t begin = 0; begin < step.parts.size();) {
      const ActivationForm form = form_of(step.parts[begin]);
      GpuProduct product = input_of(step, form);
      for (; begin < step.parts.size() && form_of(step.parts[begin]) == form &&
             product.part_count < kGpuProductParts;
           ++begin) {
        product.parts[product.part_count++] = part_of(step.parts[begin], fused_gate);
      }
      if (fused_gate) {
        product.finish = GpuFinish::kGate;
        product.gate = rows(gate->output);
      } else if (const auto* residual = std::get_if<ResidualFinish>(&step.finish)) {
        add_norms(*residual, product);
        if (product.norm_count > 0) product.finish = GpuFinish::kNorms;
      }
      launches_.emplace_back(
          Product{row_set(step.rows), product, panels_of(step.rows, form, product)});
    }
    if (gate == nullptr || fused_gate || step.parts.empty()) return;
    launches_.emplace_back(values_.launch_gate(step, *gate));
  }

  // A rank without experts routes nothing, and adds nothing to their sum.
  void add(const RouteStep& step) {
    if (!step.scores) return;
    const Routing& routing = step.routing;
    launches_.emplace_back(GpuRouting{.batch = batch_,
                                      .scores = at(step.scores),
                                      .score_stride = step.score_stride,
                                      .expert_count = routing.expert_count,
                                      .chosen_count = routing.chosen_count,
                                      .chosen = at(routing.chosen),
                                      .weights = at(routing.weights),
                                      .choice_rows = at(areas_.choice_rows),
                                      .row_begin = at(routing.row_begin),
                                      .row_tokens = at(routing.row_tokens),
                                      .gating = step.gating,
                                      .bias = at(step.bias)});
  }

  void add(const ExpertGateStep& step) {
    if (step.gate.matrices.front().rows == 0) return;
    const bool fused = step.is_one_product_on_gpus();
    const ExpertPart* const parts[] = {&step.gate, &step.up};
    for (size_t begin = 0; begin < std::size(parts);) {
      const ActivationForm form = form_of(*parts[begin]);
      Experts experts = experts_of(step.routing, step.input[form]);
      experts.product.row_tokens = at(step.routing.row_tokens);
      GpuProduct& product = experts.product.product;
      product.norm = norm_of(step.norm);
      for (; begin < std::size(parts) && form_of(*parts[begin]) == form; ++begin) {
        add_part(*parts[begin], fused, experts.product);
      }
      if (fused) {
        product.finish = GpuFinish::kGate;
        product.gate = rows(step.output);
      }
      launches_.emplace_back(experts);
    }
    if (fused) return;
    GpuElementwise activation = values_.launch_gate(step);
    const float* scales = constants_;
    activation.x_biases.scales = take_scales(step.gate, scales);
    activation.y_biases.scales = take_scales(step.up, scales);
    launches_.emplace_back(activation);
  }

  void add(const ExpertProductStep& step) {
    if (step.part.matrices.front().rows == 0) return;
    Experts experts = experts_of(step.routing, step.input[form_of(step.part)]);
    experts.product.row_tokens = at(step.routing.row_tokens);
    experts.product.product.norm = norm_of(step.norm);
    add_part(step.part, /*fused=*/false, experts.product);
    launches_.emplace_back(experts);
    if (step.part.is_plain() && !step.routing.weighs_inputs) return;
    GpuElementwise biased = values_.launch_biases(step.part, step.routing);
    biased.x_biases.scales = constants_;
    launches_.emplace_back(biased);
  }

  void add(const ExpertSumStep& step) {
    if (step.down.matrices.front().rows == 0) return;
    Experts experts = experts_of(step.routing, step.input[form_of(step.down)]);
    const auto& products = std::get<RowProducts>(step.products);
    ExpertPart down = step.down;
    down.output = products.rows;
    down.output_stride = products.stride;
    add_part(down, /*fused=*/false, experts.product);
    launches_.emplace_back(experts);
    GpuExpertSum sum = {.batch = batch_,
                        .products = at(products.rows),
                        .product_stride = products.stride,
                        .weights = step.routing.weighs_inputs ? nullptr : at(step.routing.weights),
                        .choice_rows = at(areas_.choice_rows),
                        .chosen_count = step.routing.chosen_count,
                        .columns = down.matrices.front().rows,
                        .output = at(step.down.output),
                        .output_stride = step.down.output_stride,
                        .accumulate = step.accumulate,
                        .chosen = at(step.routing.chosen)};
    const GpuRowBiases biases = values_.biases_of(step.down);
    sum.biases = biases.biases;
    sum.bias_stride = biases.stride;
    sum.scales = constants_;
    add_norms(step.finish, sum);
    launches_.emplace_back(sum);
  }

  void add(const AttendStep& step) {
    const GpuKvLayer kv = layer_of(step);
    launches_.emplace_back(Attention{heads_of(step, kv), attention_of(step, kv)});
    std::get<Attention>(launches_.back()).attention.slopes = constants_;
    if (!forms_f32_apart(step)) return;
    CHECK(!step.forms->gather || peers_.distances.size() == 1,
          "GPUs push nothing into one another's activations");
    add(FormStep{.input = step.output,
                 .input_stride = step.output_stride,
                 .columns = step.head_count * step.value_dimension,
                 .output = *step.forms});
  }

  void add(const AllReduceStep& step) {
    CHECK(plan_.rank_count > 1, "a GPU alone is to sum its parts");
    if (!is_linked()) return;
    Sum sum;
    sum.rows = step.rows;
    sum.contributors = step.contributors;
    sum.sum.partial = at(step.partial);
    sum.sum.partial_stride = step.partial_stride;
    sum.sum.output = at(step.output);
    sum.sum.output_stride = step.output_stride;
    CHECK(step.rows != Rows::kExperts, "GPUs sum no rows of experts");
    const bool of_tokens = step.rows == Rows::kTokens;
    sum.sum.row_count = of_tokens ? plan_.chunk_tokens : plan_.logit_rows;
    sum.sum.row_limit = of_tokens ? &batch_.counts->tokens : &batch_.counts->logits;
    sum.sum.column_count = step.columns;
    sum.sum.bf16 = static_cast<bool>(step.bf16_partial);
    launches_.emplace_back(std::move(sum));
    last_sum_ = &step;
  }

  // Any other step: placement gives GPUs no graph with one (find_gpu_gap()).
  template <typename Work>
  void add(const Work&) {
    CHECK(false, "GPUs have no kernel for this step");
  }

  // After the last step, which computes the logits.
  void add_search(GpuCandidateRow* candidates) {
    if (!links_.peers && links_.logit_columns.empty() && candidates == nullptr) return;
    Search search{.meets = links_.peers.has_value()};
    if (!links_.logit_columns.empty()) {
      search.gather = {at(plan_.logits), plan_.logits_stride, plan_.logit_rows};
    }
    if (candidates != nullptr) {
      search.find = {.row_count = &batch_.counts->logits,
                     .logits = at(plan_.logits),
                     .stride = plan_.logits_stride,
                     .columns = plan_.vocabulary_size,
                     .words = at(areas_.candidate_words),
                     .maxima = at(areas_.logit_maxima),
                     .picks = at(areas_.picks),
                     .rows = candidates,
                     .result_offset = &batch_.counts->result_offset};
      search.draw = {.row_count = &batch_.counts->logits,
                     .requests = batch_.draws,
                     .logits = at(plan_.logits),
                     .stride = plan_.logits_stride,
                     .columns = plan_.vocabulary_size,
                     .maxima = at(areas_.logit_maxima),
                     .sums = at(areas_.draw_sums),
                     .picks = at(areas_.picks),
                     .drawn = reinterpret_cast<GpuDrawn*>(candidates + plan_.logit_rows),
                     .result_offset = &batch_.counts->result_offset};
    }
    launches_.emplace_back(search);
  }

 private:
  // A step of a rank that has columns of it.
  template <typename ValueStep>
  void add_columns(const ValueStep& step) {
    if (step.columns > 0) launches_.emplace_back(values_.launch(step));
  }

  GpuRows rows(const FormsOutput& output) const { return values_.rows(output); }

  template <typename T>
  T* at(const ArenaOffset<T>& offset) const {
    return addresses_.at(offset);
  }
  GpuMatrix matrix_at(const PlannedMatrix& matrix) const {
    return {matrix.format, matrix.rows, matrix.columns, at(matrix.data)};
  }

  const uint32_t* ids_of(EmbedIndex index) const {
    switch (index) {
      case EmbedIndex::kToken:
        return batch_.token_ids;
      case EmbedIndex::kPosition:
        return batch_.positions;
      case EmbedIndex::kSegment:
        return batch_.segments;
    }
    return nullptr;
  }

  bool is_linked() const { return links_.peers || links_.nccl; }
  // Whether what ranks exchange is joined by NCCL.
  bool is_joined() const { return !links_.peers && links_.nccl; }

  // Whole rows in f32, of which each rank has some columns (find_gpu_gap()). To processors the
  // worker sends them.
  void add_gathered(const FormStep& step) {
    CHECK(step.rows == Rows::kTokens, "GPUs exchange rows of tokens alone");
    const FormBuffer& form = step.output.forms[ActivationForm::kF32];
    CHECK(form.is_read() && !step.output.forms[ActivationForm::kBf16].is_read(),
          "GPUs push nothing into one another's activations");
    const auto all = ArenaOffset<float>{form.rows.arena, form.rows.bytes};
    GpuElementwise own = values_.launch(step);
    if (is_joined()) {
      GpuElementwise others = own;
      others.function = GpuFunction::kMinusZero;
      others.x = nullptr;
      others.columns = step.output.forms.columns;
      others.output.rows.f32 = at(all);
      launches_.emplace_back(others);
    } else {
      add_copies(all + step.output.first_column, own);
    }
    if (step.columns > 0) launches_.emplace_back(own);
    if (is_joined()) {
      launches_.emplace_back(Join{at(all), own.output.rows.f32_stride});
    } else {
      launches_.emplace_back(RankBarrier{});
    }
  }

  // Every other rank's copy of what a launch writes.
  template <typename Launch>
  void add_copies(const ArenaOffset<float>& output, Launch& launch) const {
    for (size_t rank = 0; rank < peers_.distances.size(); ++rank) {
      if (rank == peers_.rank) continue;
      launch.copies[launch.copy_count++] = at_distance(at(output), peers_.distances[rank]);
    }
  }

  template <typename Part>
  static ActivationForm form_of(const Part& part) {
    CHECK(part.forms.prompted == part.forms.generated, "a GPU has one form for all tokens");
    return part.forms.generated;
  }

  GpuNormFactor norm_of(const NormFactor& norm) const {
    return {.chunk_sums = at(norm.chunks.sums),
            .stride = norm.chunks.stride,
            .columns = norm.columns,
            .epsilon = norm.epsilon};
  }

  Experts experts_of(const Routing& routing, const FormBuffer& input) const {
    Experts experts;
    experts.chosen_count = routing.chosen_count;
    experts.product.expert_count = routing.expert_count;
    experts.product.row_begin = at(routing.row_begin);
    experts.product.chosen = at(routing.chosen);
    experts.product.choice_rows = at(areas_.choice_rows);
    experts.product.product.input = at(input.rows);
    experts.product.product.input_stride_bytes = input.stride_bytes;
    return experts;
  }

  void add_part(const ExpertPart& part, bool fused, GpuExpertProduct& experts) const {
    const std::vector<PlannedMatrix>& matrices = part.matrices;
    const auto places =
        even_places(matrices.size(), [&](size_t expert) { return matrices[expert].data.bytes; });
    CHECK(places, "experts' matrices do not lie in order");
    GpuProduct& product = experts.product;
    experts.matrix_stride_bytes[product.part_count] = places->stride;
    experts.sharing[product.part_count] = static_cast<unsigned>(places->sharing);
    product.parts[product.part_count++] = {.matrix = matrix_at(matrices[0]),
                                           .output = fused ? nullptr : at(part.output),
                                           .output_stride = part.output_stride};
  }

  GpuProduct input_of(const MatmulStep& step, ActivationForm form) const {
    const FormBuffer& input = step.input[form];
    GpuProduct product;
    product.input = at(input.rows);
    product.input_stride_bytes = input.stride_bytes;
    product.token_count =
        step.rows == Rows::kTokens ? &batch_.counts->tokens : &batch_.counts->logits;
    product.norm = norm_of(step.norm);
    // Panels of the same pass come later.
    product.partials = at(areas_.panel_sums);
    product.partial_floats = areas_.panel_sum_floats;
    return product;
  }

  // Rows of logits are few, for any request.
  std::vector<GpuPanel> panels_of(Rows rows, ActivationForm form, const GpuProduct& product) const {
    if (rows == Rows::kLogits || form != ActivationForm::kBf16) return {};
    size_t part_rows[kGpuProductParts] = {};
    for (size_t part = 0; part < product.part_count; ++part) {
      part_rows[part] = product.parts[part].matrix.rows;
    }
    return gpu_panels({part_rows, product.part_count}, product.parts[0].matrix.columns,
                      product.finish == GpuFinish::kGate, areas_.panel_limits);
  }

  // The part's own, the next of its step's constants.
  static const float* take_scales(const ExpertPart& part, const float*& constants) {
    if (!part.is_scaled()) return nullptr;
    const float* const own = constants;
    constants += part.matrices.size();
    return own;
  }

  GpuPart part_of(const MatmulPart& part, bool gated) const {
    return {.matrix = matrix_at(part.matrix),
            .bias = at(part.bias),
            .output = gated ? nullptr : at(part.output),
            .output_stride = part.output_stride,
            .accumulate = part.accumulate,
            .scale = part.matrix.scale};
  }

  // To a product, or a sum of experts.
  template <typename Launch>
  void add_norms(const ResidualFinish& residual, Launch& launch) const {
    CHECK(residual.norms.size() <= kGpuProductNorms, "{} norms of one residual",
          residual.norms.size());
    for (const NormOutput& norm : residual.norms) add_norm(norm, launch);
  }

  // Or to a sum between ranks.
  template <typename Launch>
  void add_norm(const NormOutput& norm, Launch& launch) const {
    launch.norms[launch.norm_count++] = {
        .weight = at(norm.weight),
        .rows = rows(norm.output),
        .chunk_sums = at(norm.chunks.sums),
        .chunk_stride = norm.chunks.stride,
        .row_of_token = norm.rows == Rows::kLogits ? batch_.logit_rows : nullptr};
  }

  GpuNormRows norm_rows_of(const NormStep& step) const {
    return {.batch = batch_,
            .which = row_set(step.norm.rows),
            .has_logit_rows = step.residual_rows == Rows::kLogits,
            .residual = at(step.residual),
            .residual_stride = step.residual_stride,
            .columns = step.columns,
            .weight = at(step.norm.weight),
            .rows = rows(step.norm.output),
            .sums = at(step.norm.chunks.sums),
            .sum_stride = step.norm.chunks.stride};
  }

  // The sum that has just left what the norm reads, if the norm can be a part of it.
  Sum* sum_of(const NormStep& step) {
    auto* const sum = launches_.empty() ? nullptr : std::get_if<Sum>(&launches_.back());
    const bool has_space = sum != nullptr && sum->sum.norm_count < kGpuProductNorms;
    return has_space && reads_sum(step, *last_sum_) ? sum : nullptr;
  }

  GpuKvLayer layer_of(const AttendStep& step) const {
    const KvLayer& layer = plan_.kv.layers[step.layer];
    return {.format = plan_.kv.format.keys,
            .key_dimension = static_cast<unsigned>(layer.key_dimension),
            .value_dimension = static_cast<unsigned>(layer.value_dimension),
            .blocks = at(plan_.kv.keys(step.layer, 0)),
            .head_stride_bytes = layer.head_stride_bytes,
            .page_stride_bytes = layer.page_stride_bytes};
  }

  // The batch with the page tables of the layer's group.
  GpuBatch batch_of(const AttendStep& step) const {
    GpuBatch batch = batch_;
    batch.pages += plan_.kv.layers[step.layer].group * areas_.limits.pages;
    return batch;
  }

  GpuHeads heads_of(const AttendStep& step, const GpuKvLayer& kv) const {
    const PrepareHeads& prepare = step.prepare;
    return {.batch = batch_of(step),
            .kv = kv,
            .queries = at(step.queries),
            .query_stride = step.query_stride,
            .keys = at(prepare.keys),
            .values = at(prepare.values),
            .key_stride = prepare.key_stride,
            .value_stride = prepare.value_stride,
            .head_count = static_cast<unsigned>(step.head_count),
            .kv_head_count = prepare.keys ? static_cast<unsigned>(step.kv_head_count) : 0,
            .query_norm = at(prepare.query_norm),
            .key_norm = at(prepare.key_norm),
            .epsilon = prepare.epsilon,
            .norm_is_last = prepare.norm_is_last,
            .pairs = prepare.pairs,
            .rotary_table = at(prepare.rotary.rows),
            .rotary_stride = prepare.rotary.stride,
            .rotary_dimensions = static_cast<unsigned>(prepare.rotary.dimensions)};
  }

  GpuAttention attention_of(const AttendStep& step, const GpuKvLayer& kv) const {
    GpuRows out;
    if (step.forms && !forms_f32_apart(step)) out = rows(*step.forms);
    if (step.leaves_output) {
      out.f32 = at(step.output);
      out.f32_stride = step.output_stride;
    }
    return {.batch = batch_of(step),
            .kv = kv,
            .queries = at(step.queries),
            .query_stride = step.query_stride,
            .head_count = static_cast<unsigned>(step.head_count),
            .kv_head_count = static_cast<unsigned>(step.kv_head_count),
            .group = static_cast<unsigned>(step.group),
            .group_offset = static_cast<unsigned>(step.group_offset),
            .window = static_cast<unsigned>(step.window),
            .scale = step.scale,
            .output = {.floats = out.f32,
                       .float_stride = out.f32_stride,
                       .bf16 = out.bf16,
                       .bf16_stride = out.bf16_stride},
            .partial_outputs = at(areas_.partials.rows),
            .partial_sums = at(areas_.partials.sums),
            .arrived = at(areas_.partials.arrived),
            .section = static_cast<unsigned>(step.section),
            .score_cap = step.score_cap,
            .sinks = at(step.sinks),
            .ahead = static_cast<unsigned>(std::min<size_t>(step.ahead, UINT32_MAX))};
  }

  const Plan& plan_;
  const GpuAreas& areas_;
  const ArenaAddresses& addresses_;
  const Peers& peers_;
  const GpuBatch batch_;
  const GpuValueLaunches values_;
  const GpuLinks& links_;
  std::vector<Launch>& launches_;
  const NormSumsStep* norm_sums_ = nullptr;  // of the last norm of whole rows
  const AllReduceStep* last_sum_ = nullptr;  // of the launches
  size_t frequency_count_ = 0;               // of the tables so far
  const float* constants_ = nullptr;         // the step's gpu_constants(), or none
  size_t constant_count_ = 0;                // of the steps so far
};

GpuProgram::GpuProgram(const Plan& plan, const ArenaAddresses& addresses, const Peers& peers,
                       const GpuPlatform& platform, GpuMatrixLibrary& library,
                       const GpuLinks& links, const GpuHostRows& host)
    : kernels_(*platform.kernels),
      collectives_(*platform.collectives),
      sum_way_(platform.sum_way),
      library_(library),
      links_(links),
      rank_(plan.rank),
      rank_count_(plan.rank_count),
      batch_tokens_(plan.chunk_tokens) {
  const auto* const areas = std::get_if<GpuAreas>(&plan.areas);
  CHECK(areas != nullptr, "the plan is none of a GPU");
  panel_ = addresses.at(areas->panel);
  panel_sums_ = addresses.at(areas->panel_sums);
  Builder builder(plan, addresses, peers, links_, host.given, launches_);
  for (const Step& step : plan.steps) {
    step_begins_.push_back(launches_.size());
    builder.find_constants(step.work);
    std::visit([&](const auto& kind) { builder.add(kind); }, step.work);
  }
  builder.add_search(host.candidates);
  step_begins_.push_back(launches_.size());
}

}  // namespace lockstep
