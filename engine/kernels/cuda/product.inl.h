// The product of a few tokens with weights (gpu_product.h). Included by product.cu, and by tests,
// after gpu_code.h.
//
// A block computes 32 rows: of one matrix, or 16 of each of a gate's two.
#pragma once

#include <algorithm>

#include "engine/kernels/cuda/product_block.inl.h"
#include "engine/kernels/cuda/product_few.inl.h"

namespace lockstep {
namespace {

// The activations of consecutive tokens.
template <unsigned kGroups>
struct ProductInput {
  static constexpr bool kIsStaged = false;
  static constexpr bool kIsScaled = true;
  // Rows of more groups are computed where they are read: registers would not do.
  static constexpr bool kHoldsRows = kGroups <= 2;

  const std::byte* rows;
  unsigned stride_bytes;
  unsigned columns;
  unsigned tokens;
  const std::byte* lane;  // what this one reads of the first token's row
  const std::byte* lane_rows[kHoldsRows ? kGroups : 1];

  // The row that the lane reads for tile products: that of a group's token lane / 4, or the last
  // token's row if the group has no such token; the sums of such a row are not read.
  GPU_FUNCTION const std::byte* find_lane_row(unsigned group) const {
    const unsigned token = group * kGroupTokens + lane_index() / 4;
    return lane + size_t{token < tokens ? token : tokens - 1} * stride_bytes;
  }
  GPU_FUNCTION const std::byte* lane_row(unsigned group) const {
    if constexpr (kHoldsRows) return lane_rows[group];
    return find_lane_row(group);
  }
  GPU_FUNCTION const std::byte* row(unsigned token) const {
    return rows + size_t{token} * stride_bytes;
  }
  // Whose norm's factor a token has.
  GPU_FUNCTION size_t source_of(unsigned token) const { return token; }
};

template <Format kFormat, unsigned kGroups>
GPU_FUNCTION ProductInput<kGroups> product_input(const GpuProduct& product, size_t columns,
                                                 unsigned tokens) {
  ProductInput<kGroups> input = {product.input,
                                 static_cast<unsigned>(product.input_stride_bytes),
                                 static_cast<unsigned>(columns),
                                 tokens,
                                 product.input + lane_row_byte<kFormat>(),
                                 {}};
  keep(input.stride_bytes);
  keep(input.lane);
  if constexpr (input.kHoldsRows) {
    GPU_UNROLL
    for (unsigned group = 0; group < kGroups; ++group) {
      input.lane_rows[group] = input.find_lane_row(group);
      keep(input.lane_rows[group]);
    }
  }
  return input;
}

template <Format kFormat, unsigned kGroups>
GPU_KERNEL_AT_ONCE(kProductWarps* kWarpThreads, (blocks_at_once<kFormat, kGroups>()))
void multiply_rows(GpuProduct product, size_t part_begin, size_t part_end) {
  const BlockPlace place = block_place(product, part_begin, part_end, block_column());
  const GpuMatrix& matrix = product.parts[place.part].matrix;
  const GpuPlanes planes = gpu_planes(gpu_layout(kFormat), matrix.rows, matrix.columns);
  BlockWeights weights = place_panels<kFormat>(product, planes, place, warp_index());
  const auto units = static_cast<unsigned>(planes.units);
  begin_weights<kFormat>(weights, units);
  follow_launches();
  const unsigned token_count = *product.token_count;
  // Not while copies go on: shared memory is another block's then.
  if (token_count <= product.token_begin) return wait_for_copies<0>();
  const size_t left = token_count - product.token_begin;
  const auto tokens =
      static_cast<unsigned>(left < product.token_limit ? left : product.token_limit);
  const auto input = product_input<kFormat, kGroups>(product, matrix.columns, tokens);
  multiply_window<kFormat, kGroups>(product, place, weights, units, input, /*first=*/0);
}

template <Format kFormat, unsigned kGroups>
void launch_groups(void* stream, const GpuProduct& product, size_t begin, size_t end) {
  const Grid grid = {.columns = static_cast<unsigned>(product_blocks(product, begin, end)),
                     .threads = kProductWarps * kWarpThreads,
                     .shared_bytes = product_shared_bytes<kFormat, kGroups>()};
  launch(stream, grid, multiply_rows<kFormat, kGroups>, product, begin, end);
}

// More tokens than this are multiplied by multiply_many_tokens(), but for F32 weights.
constexpr size_t kFewTokens = kGroupTokens;
// F32 weights are multiplied by so many tokens at a time.
constexpr size_t kF32Tokens = 64;

// `product`: as it came, without window_of().
template <Format kFormat>
void launch_product(void* stream, const GpuProduct& product, size_t begin, size_t end) {
  if (product.token_limit <= kFewTokens) {
    const GpuProduct window = window_of(product);
    if constexpr (kFormat != Format::kF32) {
      if (launch_few<kFormat>(stream, window, begin, end)) return;
    }
    return launch_groups<kFormat, 1>(stream, window, begin, end);
  }
  if constexpr (kFormat != Format::kF32) {
    return multiply_many_tokens(stream, window_of(product), begin, end);
  } else {
    GpuProduct window = product;
    for (size_t first = 0; first < product.token_limit; first += kF32Tokens) {
      window.token_begin = product.token_begin + first;
      window.token_limit = std::min(product.token_limit - first, kF32Tokens);
      launch_groups<kFormat, kF32Tokens / kGroupTokens>(stream, window_of(window), begin, end);
    }
  }
}

}  // namespace

void gpu_product(void* stream, const GpuProduct& product) {
  check_product(product);
  for_each_run(product, [&]<Format kFormat>(size_t begin, size_t end) {
    launch_product<kFormat>(stream, product, begin, end);
  });
}

}  // namespace lockstep
