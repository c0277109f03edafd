// Products of experts with their rows (gpu_experts.h). Included by experts.cu, and by tests,
// after gpu_code.h.
#pragma once

#include "engine/kernels/cuda/product_block.inl.h"
#include "engine/kernels/gpu_experts.h"

namespace lockstep {
namespace {

// The activations of rows whose tokens do not follow one another. A lane knows where those begin
// that it reads for tile products.
template <unsigned kGroups>
struct GatheredInput {
  static constexpr bool kIsStaged = false;
  static constexpr bool kIsScaled = false;  // what follows their products does that

  const std::byte* rows;
  size_t stride_bytes;
  unsigned columns;
  unsigned tokens;
  const uint32_t* sources;  // by row from the window's first on; none: from `first` on
  size_t first;
  const std::byte* lane_rows[kGroups];

  GPU_FUNCTION size_t source_of(unsigned token) const {
    return sources == nullptr ? first + token : sources[token];
  }
  GPU_FUNCTION const std::byte* row(unsigned token) const {
    return rows + source_of(token) * stride_bytes;
  }
  GPU_FUNCTION const std::byte* lane_row(unsigned group) const { return lane_rows[group]; }
};

template <Format kFormat, unsigned kGroups>
GPU_FUNCTION GatheredInput<kGroups> gathered_input(const GpuExpertProduct& experts, size_t first,
                                                   unsigned tokens) {
  const GpuProduct& product = experts.product;
  GatheredInput<kGroups> input = {
      product.input,
      product.input_stride_bytes,
      static_cast<unsigned>(product.parts[0].matrix.columns),
      tokens,
      experts.row_tokens == nullptr ? nullptr : experts.row_tokens + first,
      first,
      {}};
  GPU_UNROLL
  for (unsigned group = 0; group < kGroups; ++group) {
    const unsigned token = group * kGroupTokens + lane_index() / 4;
    input.lane_rows[group] =
        input.row(token < tokens ? token : tokens - 1) + lane_row_byte<kFormat>();
    keep(input.lane_rows[group]);
  }
  return input;
}

GPU_FUNCTION GpuMatrix matrix_of(const GpuExpertProduct& experts, size_t part, size_t expert) {
  GpuMatrix matrix = experts.product.parts[part].matrix;
  const unsigned index = static_cast<unsigned>(expert) / experts.sharing[part];
  matrix.planes += index * experts.matrix_stride_bytes[part];
  return matrix;
}

// Whose weights the block multiplies; expert_count: nobody's.
GPU_FUNCTION size_t expert_of_block(const GpuExpertProduct& experts) {
  const unsigned index = block_row();
  if (experts.choice_count == 0) return index;
  if (index >= experts.row_begin[experts.expert_count]) return experts.expert_count;
  const uint32_t expert = experts.chosen[index];
  return experts.choice_rows[index] == experts.row_begin[expert] ? expert : experts.expert_count;
}

// A block takes 32 rows of an expert's weights, and one window of its rows after the other.
template <Format kFormat, unsigned kGroups>
GPU_KERNEL_AT_ONCE(kProductWarps* kWarpThreads, (blocks_at_once<kFormat, kGroups>()))
void multiply_expert_rows(GpuExpertProduct experts, size_t part_begin, size_t part_end) {
  constexpr unsigned kTokens = kGroups * kGroupTokens;
  follow_launches();  // first: whose weights they are, other launches have written
  const GpuProduct& product = experts.product;
  const size_t expert = expert_of_block(experts);
  if (expert == experts.expert_count) return;
  const size_t begin = experts.row_begin[expert];
  const size_t end = experts.row_begin[expert + 1];
  if (begin == end) return;
  const BlockPlace place = block_place(product, part_begin, part_end, block_column());
  const GpuMatrix matrix = matrix_of(experts, place.part, expert);
  const GpuPlanes planes = gpu_planes(gpu_layout(kFormat), matrix.rows, matrix.columns);
  const bool gate = product.finish == GpuFinish::kGate;
  const BlockWeights weights = place_panels<kFormat>(
      matrix, gate ? matrix_of(experts, 1, expert) : matrix, gate, planes, place, warp_index());
  const auto units = static_cast<unsigned>(planes.units);
  for (size_t first = begin; first < end; first += kTokens) {
    if (first > begin) meet_block();  // the sums before have been read
    BlockWeights asked = weights;
    begin_weights<kFormat>(asked, units);
    const auto tokens = static_cast<unsigned>(end - first < kTokens ? end - first : kTokens);
    const auto input = gathered_input<kFormat, kGroups>(experts, first, tokens);
    multiply_window<kFormat, kGroups>(product, place, asked, units, input, first);
  }
}

template <Format kFormat, unsigned kGroups>
void launch_expert_groups(void* stream, const GpuExpertProduct& experts, size_t begin, size_t end) {
  const Grid grid = {.columns = static_cast<unsigned>(product_blocks(experts.product, begin, end)),
                     .rows = static_cast<unsigned>(experts.choice_count > 0 ? experts.choice_count
                                                                            : experts.expert_count),
                     .threads = kProductWarps * kWarpThreads,
                     .shared_bytes = product_shared_bytes<kFormat, kGroups>()};
  launch(stream, grid, multiply_expert_rows<kFormat, kGroups>, experts, begin, end);
}

template <Format kFormat>
void launch_experts(void* stream, const GpuExpertProduct& experts, size_t begin, size_t end) {
  const size_t rows = experts.product.token_limit;
  if (rows <= 8) return launch_expert_groups<kFormat, 1>(stream, experts, begin, end);
  if (rows <= 16) return launch_expert_groups<kFormat, 2>(stream, experts, begin, end);
  return launch_expert_groups<kFormat, 8>(stream, experts, begin, end);
}

}  // namespace

void gpu_expert_product(void* stream, const GpuExpertProduct& experts) {
  check_product(experts.product);
  CHECK(experts.product.norm_count == 0, "{} norms of experts", experts.product.norm_count);
  for_each_run(experts.product, [&]<Format kFormat>(size_t begin, size_t end) {
    launch_experts<kFormat>(stream, experts, begin, end);
  });
}

}  // namespace lockstep
