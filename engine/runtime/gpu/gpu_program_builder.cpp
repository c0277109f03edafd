// A plan's steps as a GPU's launches.
#include <iterator>
#include <utility>

#include "engine/base/check.h"
#include "engine/runtime/gpu/gpu_program.h"

namespace lockstep {
namespace {

GpuRows rows_of(const FormsOutput& output, const ArenaAddresses& addresses) {
  const Forms& forms = output.forms;
  CHECK(!forms[ActivationForm::kQ8].is_read() && !forms[ActivationForm::kBf16Dots].is_read(),
        "a GPU's activations are bf16 or f32");
  GpuRows rows;
  if (const FormBuffer& bf16 = forms[ActivationForm::kBf16]; bf16.is_read()) {
    rows.bf16 = reinterpret_cast<uint16_t*>(addresses.at(bf16.rows)) + output.first_column;
    rows.bf16_stride = bf16.stride_bytes / sizeof(uint16_t);
  }
  if (const FormBuffer& f32 = forms[ActivationForm::kF32]; f32.is_read()) {
    rows.f32 = reinterpret_cast<float*>(addresses.at(f32.rows)) + output.first_column;
    rows.f32_stride = f32.stride_bytes / sizeof(float);
  }
  return rows;
}

GpuRowSet row_set(Rows rows) {
  return rows == Rows::kTokens ? GpuRowSet::kTokens : GpuRowSet::kLogits;
}

}  // namespace

class GpuProgram::Builder {
 public:
  Builder(const Plan& plan, const ArenaAddresses& addresses, const Peers& peers,
          const GpuLinks& links, std::vector<Launch>& launches)
      : plan_(plan),
        areas_(std::get<GpuAreas>(plan.areas)),
        addresses_(addresses),
        peers_(peers),
        batch_(gpu_batch_at(at(areas_.batch), areas_.limits)),
        links_(links),
        launches_(launches) {}

  // Pages need not be cleared: no slot is read that has not been written.
  void add(const ClearPagesStep&) {}

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
    // Into every rank's copy. What another rank writes is there once all have met.
    for (size_t rank = 0; rank < peers_.distances.size(); ++rank) {
      if (rank == peers_.rank) continue;
      embedding.copies[embedding.copy_count++] =
          at_distance(at(step.output), peers_.distances[rank]);
    }
    launches_.emplace_back(RankBarrier{});
  }

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
    CHECK(step.rows == Rows::kTokens, "a GPU forms rows of tokens alone");
    if (step.columns == 0) return;
    launches_.emplace_back(GpuFormRows{.batch = batch_,
                                       .input = at(step.input),
                                       .input_stride = step.input_stride,
                                       .columns = step.columns,
                                       .rows = rows(step.output)});
  }

  void add(const MatmulStep& step) {
    const auto* gate = std::get_if<GateFinish>(&step.finish);
    CHECK(gate == nullptr || gate->activation == ActivationFunction::kSilu,
          "GPUs compute gates by SiLU alone");
    const bool fused_gate = gate != nullptr && is_one_shape(step.parts);
    // Parts that consume one form are one product.
    for (size_t begin = 0; begin < step.parts.size();) {
      const ActivationForm form = form_of(step.parts[begin]);
      GpuProduct product = input_of(step, form);
      for (; begin < step.parts.size() && form_of(step.parts[begin]) == form; ++begin) {
        CHECK(product.part_count < kGpuProductParts, "{} parts in one product", step.parts.size());
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
    launches_.emplace_back(GpuFormRows{.batch = batch_,
                                       .which = row_set(step.rows),
                                       .input = at(step.parts[0].output),
                                       .up = at(step.parts[1].output),
                                       .input_stride = step.parts[0].output_stride,
                                       .columns = step.parts[0].matrix.rows,
                                       .rows = rows(gate->output)});
  }

  // A rank without experts routes nothing, and adds nothing to their sum.
  void add(const RouteStep& step) {
    if (!step.scores) return;
    CHECK(step.gating == Gating() && !step.bias, "GPUs route by the chosen scores' softmax alone");
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
                                      .row_tokens = at(routing.row_tokens)});
  }

  void add(const ExpertGateStep& step) {
    if (step.gate.matrices.front().rows == 0) return;
    const bool fused = step.is_one_shape();
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
    launches_.emplace_back(
        GpuFormRows{.batch = batch_,
                    .rows_each = static_cast<unsigned>(step.routing.chosen_count),
                    .input = at(step.gate.output),
                    .up = at(step.up.output),
                    .input_stride = step.gate.output_stride,
                    .columns = step.gate.matrices.front().rows,
                    .rows = rows(step.output)});
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
                        .weights = at(step.routing.weights),
                        .choice_rows = at(areas_.choice_rows),
                        .chosen_count = step.routing.chosen_count,
                        .columns = down.matrices.front().rows,
                        .output = at(step.down.output),
                        .output_stride = step.down.output_stride,
                        .accumulate = step.accumulate};
    add_norms(step.finish, sum);
    launches_.emplace_back(sum);
  }

  void add(const AttendStep& step) {
    const GpuKvLayer kv = layer_of(step);
    launches_.emplace_back(Attention{heads_of(step, kv), attention_of(step, kv)});
  }

  void add(const AllReduceStep& step) {
    CHECK(peers_.distances.size() > 1, "a GPU alone is to sum its parts");
    if (!is_linked()) return;
    Sum sum;
    sum.rows = step.rows;
    sum.contributors = step.contributors;
    sum.sum.partial = at(step.partial);
    sum.sum.partial_stride = step.partial_stride;
    sum.sum.output = at(step.output);
    sum.sum.output_stride = step.output_stride;
    const bool of_tokens = step.rows == Rows::kTokens;
    sum.sum.row_count = of_tokens ? plan_.batch_tokens : plan_.logit_rows;
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
    if (!links_.peers && candidates == nullptr) return;
    Search search;
    search.meets = links_.peers.has_value();
    if (candidates != nullptr) {
      search.find = {.row_count = &batch_.counts->logits,
                     .logits = at(plan_.logits),
                     .stride = plan_.logits_stride,
                     .columns = plan_.vocabulary_size,
                     .words = at(areas_.candidate_words),
                     .maxima = at(areas_.logit_maxima),
                     .rows = candidates};
      search.draw = {.row_count = &batch_.counts->logits,
                     .requests = batch_.draws,
                     .logits = at(plan_.logits),
                     .stride = plan_.logits_stride,
                     .columns = plan_.vocabulary_size,
                     .maxima = at(areas_.logit_maxima),
                     .sums = at(areas_.draw_sums),
                     .drawn = reinterpret_cast<GpuDrawn*>(candidates + plan_.logit_rows)};
    }
    launches_.emplace_back(search);
  }

 private:
  GpuRows rows(const FormsOutput& output) const {
    CHECK(!output.gather || peers_.distances.size() == 1,
          "GPUs push nothing into one another's activations");
    return rows_of(output, addresses_);
  }

  template <typename T>
  T* at(const ArenaOffset<T>& offset) const {
    return addresses_.at(offset);
  }
  GpuMatrix matrix_at(const PlannedMatrix& matrix) const {
    return {matrix.format, matrix.rows, matrix.columns, at(matrix.data)};
  }

  bool is_linked() const { return links_.peers || links_.nccl; }

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

  // Experts lie one after the other, all of one size, as they are added to a graph.
  void add_part(const ExpertPart& part, bool fused, GpuExpertProduct& experts) const {
    CHECK(part.biases.empty(), "GPUs know no experts' biases");
    const std::vector<PlannedMatrix>& matrices = part.matrices;
    const auto distance = [&](size_t expert) {
      return matrices[expert].data.bytes - matrices[0].data.bytes;
    };
    const size_t stride = matrices.size() > 1 ? distance(1) : 0;
    for (size_t expert = 0; expert < matrices.size(); ++expert) {
      CHECK(distance(expert) == stride * expert, "expert {} does not follow those before it",
            expert);
    }
    GpuProduct& product = experts.product;
    experts.matrix_stride_bytes[product.part_count] = stride;
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

  GpuPart part_of(const MatmulPart& part, bool gated) const {
    return {.matrix = matrix_at(part.matrix),
            .bias = at(part.bias),
            .output = gated ? nullptr : at(part.output),
            .output_stride = part.output_stride,
            .accumulate = part.accumulate};
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
    return {.format = plan_.kv.format,
            .head_dimension = static_cast<unsigned>(layer.key_dimension),
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
            .kv_stride = prepare.key_stride,
            .head_count = static_cast<unsigned>(step.head_count),
            .kv_head_count = static_cast<unsigned>(step.kv_head_count),
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
    if (step.forms) {
      out = rows(*step.forms);
    } else {
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
            .arrived = at(areas_.partials.arrived)};
  }

  const Plan& plan_;
  const GpuAreas& areas_;
  const ArenaAddresses& addresses_;
  const Peers& peers_;
  const GpuBatch batch_;
  const GpuLinks& links_;
  std::vector<Launch>& launches_;
  const AllReduceStep* last_sum_ = nullptr;  // of the launches
  size_t frequency_count_ = 0;               // of the tables so far
};

GpuProgram::GpuProgram(const Plan& plan, const ArenaAddresses& addresses, const Peers& peers,
                       const GpuPlatform& platform, GpuMatrixLibrary& library,
                       const GpuLinks& links, GpuCandidateRow* candidates)
    : kernels_(*platform.kernels),
      collectives_(*platform.collectives),
      sum_way_(platform.sum_way),
      library_(library),
      links_(links),
      rank_count_(plan.rank_count),
      batch_tokens_(plan.batch_tokens) {
  const auto* const areas = std::get_if<GpuAreas>(&plan.areas);
  CHECK(areas != nullptr, "the plan is none of a GPU");
  panel_ = addresses.at(areas->panel);
  panel_sums_ = addresses.at(areas->panel_sums);
  Builder builder(plan, addresses, peers, links_, launches_);
  for (const Step& step : plan.steps) {
    step_begins_.push_back(launches_.size());
    std::visit([&](const auto& kind) { builder.add(kind); }, step.work);
  }
  builder.add_search(candidates);
  step_begins_.push_back(launches_.size());
}

}  // namespace lockstep
