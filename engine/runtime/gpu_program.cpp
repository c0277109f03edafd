#include "engine/runtime/gpu_program.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace lockstep {
namespace {

// A launch has at most so many blocks in its second dimension; kernels take what is more in turns.
constexpr uint32_t kGridRowsMax = 65'535;

unsigned grid_rows(uint32_t rows) {
  return std::clamp<uint32_t>(rows, 1, kGridRowsMax);
}

uint32_t row_count(GpuRowSet rows, const GpuPassShape& shape) {
  return rows == GpuRowSet::kTokens ? shape.tokens : shape.logits;
}

GpuRows rows_of(const FormsOutput& output) {
  const Forms& forms = output.forms;
  CHECK(!forms[ActivationForm::kQ8].is_read() && !forms[ActivationForm::kBf16Dots].is_read(),
        "a GPU's activations are bf16 or f32");
  GpuRows rows;
  if (const FormBuffer& bf16 = forms[ActivationForm::kBf16]; bf16.is_read()) {
    rows.bf16 = reinterpret_cast<uint16_t*>(bf16.rows) + output.first_column;
    rows.bf16_stride = bf16.stride_bytes / sizeof(uint16_t);
  }
  if (const FormBuffer& f32 = forms[ActivationForm::kF32]; f32.is_read()) {
    rows.f32 = reinterpret_cast<float*>(f32.rows) + output.first_column;
    rows.f32_stride = f32.stride_bytes / sizeof(float);
  }
  return rows;
}

// Planner and panels name what lies there; here it is tiles.
GpuMatrix gpu_matrix(const PackedMatrix& matrix) {
  return {matrix.format, matrix.rows, matrix.columns, matrix.panels};
}

GpuRowSet row_set(Rows rows) {
  return rows == Rows::kTokens ? GpuRowSet::kTokens : GpuRowSet::kLogits;
}

}  // namespace

class GpuProgram::Builder {
 public:
  Builder(const Plan& plan, const GpuLinks& links, std::vector<Launch>& launches)
      : plan_(plan),
        batch_(gpu_batch_at(plan.gpu.batch, plan.gpu.limits)),
        links_(links),
        launches_(launches) {}

  // Pages need not be cleared: no slot is read that has not been written.
  void add(const ClearPagesStep&) {}

  void add(const RotaryTableStep& step) {
    launches_.emplace_back(GpuRotaryTable{.batch = batch_,
                                          .frequencies = plan_.gpu.frequencies,
                                          .pairs = step.frequencies->size(),
                                          .table = step.table,
                                          .stride = step.stride});
  }

  void add(const EmbedStep& step) {
    launches_.emplace_back(GpuEmbedding{.batch = batch_,
                                        .table = gpu_matrix(step.table),
                                        .row_begin = step.row_begin,
                                        .output = step.output,
                                        .output_stride = step.output_stride});
    if (!step.gather || !is_linked()) return;
    auto& embedding = std::get<GpuEmbedding>(launches_.back());
    if (!links_.peers) {
      embedding.others_zero = true;
      launches_.emplace_back(Join{step.output, step.output_stride});
      return;
    }
    // Into every rank's copy. What another rank writes is there once all have met.
    for (size_t rank = 0; rank < plan_.peers.distances.size(); ++rank) {
      if (rank == plan_.peers.rank) continue;
      embedding.copies[embedding.copy_count++] =
          at_distance(step.output, plan_.peers.distances[rank]);
    }
    launches_.emplace_back(Meeting{});
  }

  void add(const NormStep& step) {
    launches_.emplace_back(GpuNormRows{.batch = batch_,
                                       .which = row_set(step.norm.rows),
                                       .residual = step.residual,
                                       .residual_stride = step.residual_stride,
                                       .columns = step.columns,
                                       .weight = step.norm.weight,
                                       .rows = rows(step.norm.output),
                                       .sums = step.norm.chunks.sums,
                                       .sum_stride = step.norm.chunks.stride});
  }

  void add(const FormStep& step) {
    launches_.emplace_back(GpuFormRows{.batch = batch_,
                                       .input = step.input,
                                       .input_stride = step.input_stride,
                                       .columns = step.columns,
                                       .rows = rows(step.output)});
  }

  // Experts are on processors: check_gpu_graph() has seen to it.
  void add(const RouteStep& step) { CHECK(step.scores == nullptr, "experts on a GPU"); }
  void add(const ExpertGateStep& step) { check_empty(step.gate); }
  void add(const ExpertSumStep& step) { check_empty(step.down); }

  void add(const MatmulStep& step) {
    const auto* gate = std::get_if<GateFinish>(&step.finish);
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
      }
      launches_.emplace_back(Product{step.rows, product, panels_of(step.rows, form, product)});
    }
    if (gate == nullptr || fused_gate || step.parts.empty()) return;
    launches_.emplace_back(GpuFormRows{.batch = batch_,
                                       .which = row_set(step.rows),
                                       .input = step.parts[0].output,
                                       .up = step.parts[1].output,
                                       .input_stride = step.parts[0].output_stride,
                                       .columns = step.parts[0].matrix.rows,
                                       .rows = rows(gate->output)});
  }

  void add(const AttendStep& step) {
    const GpuKvLayer kv = layer_of(step);
    launches_.emplace_back(Attention{heads_of(step, kv), attention_of(step, kv)});
  }

  void add(const AllReduceStep& step) {
    CHECK(plan_.peers.distances.size() > 1, "a GPU alone is to sum its parts");
    if (!is_linked()) return;
    Sum sum;
    sum.rows = step.rows;
    sum.contributors = step.contributors;
    sum.sum.partial = step.partial;
    sum.sum.partial_stride = step.partial_stride;
    sum.sum.output = step.output;
    sum.sum.output_stride = step.output_stride;
    sum.sum.row_count = step.rows == Rows::kTokens ? plan_.batch_tokens : plan_.logit_rows;
    sum.sum.column_count = step.columns;
    sum.sum.bf16 = step.bf16_partial != nullptr;
    launches_.emplace_back(std::move(sum));
  }

  // After the last step, which computes the logits.
  void add_search(GpuCandidateRow* candidates) {
    if (!links_.peers && candidates == nullptr) return;
    Search search;
    search.meets = links_.peers.has_value();
    if (candidates != nullptr) {
      search.find = {.row_count = &batch_.counts->logits,
                     .logits = plan_.logits,
                     .stride = plan_.logits_stride,
                     .columns = plan_.vocabulary_size,
                     .words = plan_.gpu.candidate_words,
                     .maxima = plan_.gpu.logit_maxima,
                     .rows = candidates};
      search.draw = {.row_count = &batch_.counts->logits,
                     .wishes = batch_.draws,
                     .logits = plan_.logits,
                     .stride = plan_.logits_stride,
                     .columns = plan_.vocabulary_size,
                     .maxima = plan_.gpu.logit_maxima,
                     .sums = plan_.gpu.draw_sums,
                     .drawn = reinterpret_cast<GpuDrawn*>(candidates + plan_.logit_rows)};
    }
    launches_.emplace_back(search);
  }

 private:
  GpuRows rows(const FormsOutput& output) const {
    CHECK(!output.gather || plan_.peers.distances.size() == 1,
          "GPUs push nothing into one another's activations");
    return rows_of(output);
  }

  static void check_empty(const ExpertPart& part) {
    CHECK(part.matrices.front().rows == 0, "experts on a GPU");
  }

  bool is_linked() const { return links_.peers || links_.nccl; }

  static ActivationForm form_of(const MatmulPart& part) {
    CHECK(part.forms.prompted == part.forms.generated, "a GPU has one form for all tokens");
    return part.forms.generated;
  }

  GpuProduct input_of(const MatmulStep& step, ActivationForm form) const {
    const FormBuffer& input = step.input[form];
    GpuProduct product;
    product.input = input.rows;
    product.input_stride_bytes = input.stride_bytes;
    product.token_count =
        step.rows == Rows::kTokens ? &batch_.counts->tokens : &batch_.counts->logits;
    product.norm = {.chunk_sums = step.norm.chunks.sums,
                    .stride = step.norm.chunks.stride,
                    .columns = step.norm.columns,
                    .epsilon = step.norm.epsilon};
    return product;
  }

  // Rows of logits are few, whoever wants them.
  std::vector<GpuPanel> panels_of(Rows rows, ActivationForm form, const GpuProduct& product) const {
    if (rows == Rows::kLogits || form != ActivationForm::kBf16) return {};
    size_t part_rows[kGpuProductParts] = {};
    for (size_t part = 0; part < product.part_count; ++part) {
      part_rows[part] = product.parts[part].matrix.rows;
    }
    return gpu_panels({part_rows, product.part_count}, product.parts[0].matrix.columns,
                      product.finish == GpuFinish::kGate, plan_.gpu.panel_limits);
  }

  static GpuPart part_of(const MatmulPart& part, bool gated) {
    return {.matrix = gpu_matrix(part.matrix),
            .bias = part.bias,
            .output = gated ? nullptr : part.output,
            .output_stride = part.output_stride,
            .accumulate = part.accumulate};
  }

  void add_norms(const ResidualFinish& residual, GpuProduct& product) const {
    if (residual.norms.empty()) return;
    CHECK(residual.norms.size() <= kGpuProductNorms, "{} norms of one residual",
          residual.norms.size());
    product.finish = GpuFinish::kNorms;
    for (const NormOutput& norm : residual.norms) {
      product.norms[product.norm_count++] = {
          .weight = norm.weight,
          .rows = rows(norm.output),
          .chunk_sums = norm.chunks.sums,
          .chunk_stride = norm.chunks.stride,
          .row_of_token = norm.rows == Rows::kLogits ? batch_.logit_rows : nullptr};
    }
  }

  GpuKvLayer layer_of(const AttendStep& step) const {
    const KvLayout& kv = plan_.kv;
    return {.format = kv.format,
            .head_dimension = static_cast<unsigned>(kv.head_dimension),
            .blocks = kv.keys(step.layer, 0),
            .head_stride_bytes = kv.page_count * kv.page_stride_bytes(),
            .page_stride_bytes = kv.page_stride_bytes()};
  }

  GpuHeads heads_of(const AttendStep& step, const GpuKvLayer& kv) const {
    const PrepareHeads& prepare = step.prepare;
    return {.batch = batch_,
            .kv = kv,
            .queries = step.queries,
            .query_stride = step.query_stride,
            .keys = prepare.keys,
            .values = prepare.values,
            .kv_stride = prepare.kv_stride,
            .head_count = static_cast<unsigned>(step.head_count),
            .kv_head_count = static_cast<unsigned>(step.kv_head_count),
            .query_norm = prepare.query_norm,
            .key_norm = prepare.key_norm,
            .epsilon = prepare.epsilon,
            .pairs = prepare.pairs,
            .rotary_table = prepare.rotary_table,
            .rotary_stride = prepare.rotary_stride,
            .rotary_dimensions = static_cast<unsigned>(prepare.rotary_dimensions)};
  }

  GpuAttention attention_of(const AttendStep& step, const GpuKvLayer& kv) const {
    GpuRows out;
    if (step.forms) {
      out = rows(*step.forms);
    } else {
      out.f32 = step.output;
      out.f32_stride = step.output_stride;
    }
    return {.batch = batch_,
            .kv = kv,
            .queries = step.queries,
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
            .partial_outputs = step.partials.rows,
            .partial_sums = step.partials.sums};
  }

  const Plan& plan_;
  const GpuBatch batch_;
  const GpuLinks& links_;
  std::vector<Launch>& launches_;
};

GpuProgram::GpuProgram(const Plan& plan, const GpuPlatform& platform, GpuMatrixLibrary& library,
                       const GpuLinks& links, GpuCandidateRow* candidates)
    : kernels_(*platform.kernels),
      collectives_(*platform.collectives),
      sum_way_(platform.sum_way),
      library_(library),
      areas_(plan.gpu),
      links_(links),
      rank_count_(plan.peers.distances.size()),
      batch_tokens_(plan.batch_tokens) {
  CHECK(plan.gpu.batch != nullptr, "the plan is none of a GPU");
  Builder builder(plan, links_, launches_);
  for (const Step& step : plan.steps) {
    step_begins_.push_back(launches_.size());
    std::visit([&](const auto& kind) { builder.add(kind); }, step.work);
  }
  builder.add_search(candidates);
  step_begins_.push_back(launches_.size());
}

Result<void> GpuProgram::prepare(void* stream) const {
  for (const Launch& launch : launches_) {
    const auto* product = std::get_if<Product>(&launch);
    if (product == nullptr) continue;
    for (const GpuPanel& panel : product->panels) {
      auto prepared =
          library_.prepare(stream, library_product(product->product, panel, 0, batch_tokens_));
      if (!prepared) return prepared;
    }
  }
  return {};
}

Range GpuProgram::enqueue(void* stream, const GpuPassShape& shape, Range launches,
                          size_t count_max) const {
  for (size_t count = 0; !launches.empty() && count < count_max; ++launches.begin) {
    const auto run_kind = [&](const auto& kind) { return run(kind, stream, shape); };
    count += std::visit(run_kind, launches_[launches.begin]);
  }
  return launches;
}

size_t GpuProgram::run(const GpuRotaryTable& rotary, void* stream,
                       const GpuPassShape& shape) const {
  GpuRotaryTable sized = rotary;
  sized.grid_rows = grid_rows(shape.tokens);
  kernels_.rotary_table(stream, sized);
  return 1;
}

size_t GpuProgram::run(const GpuEmbedding& embedding, void* stream,
                       const GpuPassShape& shape) const {
  GpuEmbedding sized = embedding;
  sized.grid_rows = grid_rows(shape.tokens);
  kernels_.embed_rows(stream, sized);
  return 1;
}

size_t GpuProgram::run(const GpuNormRows& norm, void* stream, const GpuPassShape& shape) const {
  const uint32_t rows = row_count(norm.which, shape);
  if (rows == 0) return 0;
  GpuNormRows sized = norm;
  sized.grid_rows = grid_rows(rows);
  kernels_.norm_rows(stream, sized);
  return 1;
}

size_t GpuProgram::run(const GpuFormRows& form, void* stream, const GpuPassShape& shape) const {
  const uint32_t rows = row_count(form.which, shape);
  if (rows == 0) return 0;
  GpuFormRows sized = form;
  sized.grid_rows = grid_rows(rows);
  kernels_.form_rows(stream, sized);
  return 1;
}

// Of more tokens than a product takes, windows that follow one another. How a token is multiplied
// depends on whether it was prompted, and on nothing else of the pass.
size_t GpuProgram::run(const Product& product, void* stream, const GpuPassShape& shape) const {
  const bool by_panels = !product.panels.empty() && shape.prompted > 0;
  const size_t rows = by_panels ? shape.generated : row_count(row_set(product.rows), shape);
  GpuProduct window = product.product;
  size_t count = 0;
  for (size_t begin = 0; begin < rows; begin += kGpuProductTokens) {
    window.token_begin = begin;
    window.token_limit = std::min(rows - begin, kGpuProductTokens);
    kernels_.product(stream, window);
    count += window.part_count;
  }
  if (!by_panels) return count;
  for (const GpuPanel& panel : product.panels) count += run_panel(product, panel, stream, shape);
  return count;
}

size_t GpuProgram::run_panel(const Product& product, const GpuPanel& panel, void* stream,
                             const GpuPassShape& shape) const {
  const GpuProduct& whole = product.product;
  uint16_t* rows = areas_.panel;
  size_t count = 2;  // of the library and of what follows
  for (size_t part = 0; part < whole.part_count; ++part) {
    if (panel.row_count[part] == 0) continue;
    const GpuMatrix& matrix = whole.parts[part].matrix;
    kernels_.unpack_rows(stream, {.matrix = matrix,
                                  .row_begin = panel.row_begin[part],
                                  .row_count = panel.row_count[part],
                                  .rows = rows});
    rows += panel.row_count[part] * gpu_panel_columns(matrix.columns);
    ++count;
  }
  library_.multiply(stream, library_product(whole, panel, shape.generated, shape.prompted));
  GpuPanelSums sums = {.product = whole,
                       .panel = panel,
                       .sums = areas_.panel_sums,
                       .grid_rows = grid_rows(shape.prompted)};
  sums.product.token_begin = shape.generated;
  sums.product.token_limit = shape.prompted;
  kernels_.finish_panel(stream, sums);
  return count;
}

GpuMatrixProduct GpuProgram::library_product(const GpuProduct& product, const GpuPanel& panel,
                                             size_t token_begin, size_t tokens) const {
  const std::byte* inputs = product.input + token_begin * product.input_stride_bytes;
  return {.weights = areas_.panel,
          .rows = panel.rows(),
          .columns = gpu_panel_columns(product.parts[0].matrix.columns),
          .inputs = reinterpret_cast<const uint16_t*>(inputs),
          .input_stride = product.input_stride_bytes / sizeof(uint16_t),
          .tokens = tokens,
          .sums = areas_.panel_sums};
}

size_t GpuProgram::run(const Attention& attention, void* stream, const GpuPassShape& shape) const {
  GpuHeads heads = attention.heads;
  heads.grid_rows = grid_rows(shape.tokens);
  kernels_.prepare_heads(stream, heads);
  GpuAttention attend = attention.attention;
  attend.token_rows = grid_rows(shape.tokens);
  size_t count = 1;
  if (shape.units > 0) {
    attend.grid_rows = grid_rows(shape.units);
    kernels_.attend_generated(stream, attend);
    count += 2;  // what it leaves is merged
  }
  if (shape.walked) {
    attend.grid_rows = grid_rows(shape.tokens);
    kernels_.attend_walked(stream, attend);
    ++count;
  }
  if (shape.prompt_tiles == 0) return count;
  // Where there are no tile products, each block takes a token.
  const bool tiles = gpu_has_prompt_tiles(attend.kv.format, attend.kv.head_dimension);
  attend.grid_rows = grid_rows(tiles ? shape.prompt_tiles : shape.tokens);
  kernels_.attend_prompted(stream, attend);
  return count + 1;
}

size_t GpuProgram::run(const Search& search, void* stream, const GpuPassShape& shape) const {
  if (shape.logits == 0) return 0;
  if (search.meets) collectives_.meet(stream, *links_.peers);
  const size_t meetings = search.meets ? 1 : 0;
  if (search.find.rows == nullptr) return meetings;
  GpuCandidates sized = search.find;
  sized.grid_rows = grid_rows(shape.logits);
  kernels_.find_candidates(stream, sized);
  GpuDraw draw = search.draw;
  draw.grid_rows = sized.grid_rows;
  kernels_.draw_tokens(stream, draw);
  return meetings + 4;  // two each
}

}  // namespace lockstep
