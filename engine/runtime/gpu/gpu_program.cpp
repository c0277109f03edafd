#include "engine/runtime/gpu/gpu_program.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"

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

// A launch that walks over so many rows, with a block of the second dimension for each.
template <typename Launch>
void launch_rows(void (*kernel)(void* stream, const Launch& launch), Launch launch, uint32_t rows,
                 void* stream) {
  launch.grid_rows = grid_rows(rows);
  kernel(stream, launch);
}

// The same of a launch on values. Returns how many launches it was.
template <typename Launch>
size_t launch_walk(void (*kernel)(void* stream, const Launch& launch), Launch launch, void* stream,
                   const GpuPassShape& shape) {
  const GpuWalk& walk = launch.walk;
  const uint32_t rows = row_count(walk.which, shape) * std::max(walk.rows_each, 1U);
  if (rows == 0) return 0;
  launch.walk.grid_rows = grid_rows(rows);
  kernel(stream, launch);
  return 1;
}

}  // namespace

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
  launch_rows(kernels_.rotary_table, rotary, shape.tokens, stream);
  return 1;
}

size_t GpuProgram::run(const GpuEmbedding& embedding, void* stream,
                       const GpuPassShape& shape) const {
  launch_rows(kernels_.embed_rows, embedding, shape.tokens, stream);
  return 1;
}

size_t GpuProgram::run(const GpuNormRows& norm, void* stream, const GpuPassShape& shape) const {
  const uint32_t rows = row_count(norm.which, shape);
  if (rows == 0) return 0;
  launch_rows(kernels_.norm_rows, norm, rows, stream);
  return 1;
}

size_t GpuProgram::run(const GpuElementwise& step, void* stream, const GpuPassShape& shape) const {
  return launch_walk(kernels_.compute_elements, step, stream, shape);
}

size_t GpuProgram::run(const GpuChunkSums& sums, void* stream, const GpuPassShape& shape) const {
  return launch_walk(kernels_.sum_chunks, sums, stream, shape);
}

size_t GpuProgram::run(const GpuWholeNorm& norm, void* stream, const GpuPassShape& shape) const {
  return launch_walk(kernels_.norm_whole_rows, norm, stream, shape);
}

size_t GpuProgram::run(const GpuHeadRows& heads, void* stream, const GpuPassShape& shape) const {
  return launch_walk(kernels_.treat_head_rows, heads, stream, shape);
}

size_t GpuProgram::run(const GpuHeadCopy& copy, void* stream, const GpuPassShape& shape) const {
  return launch_walk(kernels_.copy_heads, copy, stream, shape);
}

size_t GpuProgram::run(const GpuRowMeans& means, void* stream, const GpuPassShape& shape) const {
  return launch_walk(kernels_.mean_rows, means, stream, shape);
}

// More tokens than a product takes are windows that follow one another. A token's arithmetic
// depends on whether it was prompted, and on nothing else of the pass.
size_t GpuProgram::run(const Product& product, void* stream, const GpuPassShape& shape) const {
  const bool by_panels = !product.panels.empty() && shape.prompted > 0;
  const size_t rows = by_panels ? shape.generated : row_count(product.rows, shape);
  GpuProduct window = product.product;
  size_t count = 0;
  for (size_t begin = 0; begin < rows; begin += kGpuProductTokens) {
    window.token_begin = begin;
    window.token_limit = std::min(rows - begin, kGpuProductTokens);
    kernels_.product(stream, window);
    count += 2 * window.part_count;
  }
  return by_panels ? count + run_panels(product, stream, shape) : count;
}

size_t GpuProgram::run_panels(const Product& product, void* stream,
                              const GpuPassShape& shape) const {
  const GpuProduct& whole = product.product;
  const bool to_output = gpu_goes_to_output(whole);
  size_t count = 0;
  for (const GpuPanel& panel : product.panels) {
    count += unpack(whole, panel, stream) + 1;
    library_.multiply(stream, library_product(whole, panel, shape.generated, shape.prompted));
    if (to_output) continue;
    finish(whole, panel, panel_sums_, stream, shape);
    ++count;
  }
  if (!to_output || whole.norm_count == 0) return count;
  const GpuPanel all = {.row_count = {whole.parts[0].matrix.rows}};
  finish(whole, all, nullptr, stream, shape);
  return count + 1;
}

size_t GpuProgram::unpack(const GpuProduct& product, const GpuPanel& panel, void* stream) const {
  uint16_t* rows = panel_;
  size_t count = 0;
  for (size_t part = 0; part < product.part_count; ++part) {
    if (panel.row_count[part] == 0) continue;
    const GpuMatrix& matrix = product.parts[part].matrix;
    kernels_.unpack_rows(stream, {.matrix = matrix,
                                  .row_begin = panel.row_begin[part],
                                  .row_count = panel.row_count[part],
                                  .rows = rows});
    rows += panel.row_count[part] * gpu_panel_columns(matrix.columns);
    ++count;
  }
  return count;
}

void GpuProgram::finish(const GpuProduct& product, const GpuPanel& panel, const float* panel_sums,
                        void* stream, const GpuPassShape& shape) const {
  GpuPanelSums sums = {
      .product = product,
      .panel = panel,
      .sums = panel_sums,
      .grid_rows = grid_rows(divide_up<uint32_t>(shape.prompted, kGpuFinishTokens))};
  sums.product.token_begin = shape.generated;
  sums.product.token_limit = shape.prompted;
  kernels_.finish_panel(stream, sums);
}

GpuMatrixProduct GpuProgram::library_product(const GpuProduct& product, const GpuPanel& panel,
                                             size_t token_begin, size_t tokens) const {
  const std::byte* inputs = product.input + token_begin * product.input_stride_bytes;
  GpuMatrixProduct by_library = {.weights = panel_,
                                 .rows = panel.rows(),
                                 .columns = gpu_panel_columns(product.parts[0].matrix.columns),
                                 .inputs = reinterpret_cast<const uint16_t*>(inputs),
                                 .input_stride = product.input_stride_bytes / sizeof(uint16_t),
                                 .tokens = tokens,
                                 .sums = panel_sums_,
                                 .sum_stride = panel.rows()};
  if (!gpu_goes_to_output(product)) return by_library;
  const GpuPart& part = product.parts[0];
  by_library.sums = part.output + token_begin * part.output_stride + panel.row_begin[0];
  by_library.sum_stride = part.output_stride;
  by_library.accumulate = part.accumulate;
  return by_library;
}

size_t GpuProgram::run(const GpuRouting& routing, void* stream, const GpuPassShape& shape) const {
  launch_rows(kernels_.route_tokens, routing, shape.tokens, stream);
  return 2;
}

// Twice as many rows at once as an expert has, were they shared out evenly: a guess, and one
// of speed alone. Of few tokens all may go to one expert.
size_t GpuProgram::run(const Experts& experts, void* stream, const GpuPassShape& shape) const {
  const size_t rows = shape.tokens * experts.chosen_count;
  const size_t even = divide_up(rows, experts.product.expert_count);
  GpuExpertProduct sized = experts.product;
  sized.product.token_limit = std::clamp<size_t>(2 * even, 1, kGpuExpertRows);
  if (rows < sized.expert_count) sized.choice_count = rows;
  kernels_.expert_product(stream, sized);
  return sized.product.part_count;
}

size_t GpuProgram::run(const GpuExpertSum& sum, void* stream, const GpuPassShape& shape) const {
  launch_rows(kernels_.sum_experts, sum, shape.tokens, stream);
  return 1;
}

size_t GpuProgram::run(const Attention& attention, void* stream, const GpuPassShape& shape) const {
  GpuAttention attend = attention.attention;
  attend.grid_rows = grid_rows(shape.units);
  if (shape.attends_at_once) {
    kernels_.attend_generated(stream, attend, &attention.heads);
    return 1;
  }
  launch_rows(kernels_.prepare_heads, attention.heads, shape.tokens, stream);
  size_t count = 1;
  if (shape.units > 0) {
    kernels_.attend_generated(stream, attend, nullptr);
    ++count;
  }
  if (shape.walked) {
    attend.grid_rows = grid_rows(shape.tokens);
    kernels_.attend_walked(stream, attend);
    ++count;
  }
  if (shape.prompt_tiles == 0) return count;
  // Each block takes a token where there are no tile products.
  const bool tiles =
      gpu_has_prompt_tiles(attend.kv.format, attend.kv.key_dimension, attend.kv.value_dimension);
  attend.grid_rows = grid_rows(tiles ? shape.prompt_tiles : shape.tokens);
  kernels_.attend_prompted(stream, attend);
  return count + 1;
}

size_t GpuProgram::run(const Search& search, void* stream, const GpuPassShape& shape) const {
  if (shape.logits == 0) return 0;
  if (search.meets) collectives_.meet(stream, *links_.peers);
  const size_t barriers = (search.meets ? 1 : 0) + gather(search.gather, stream, shape);
  if (search.find.rows == nullptr) return barriers;
  launch_rows(kernels_.find_candidates, search.find, shape.logits, stream);
  launch_rows(kernels_.draw_tokens, search.draw, shape.logits, stream);
  return barriers + 4;  // two each
}

}  // namespace lockstep
