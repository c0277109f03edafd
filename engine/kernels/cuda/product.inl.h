// The product of a few tokens with weights (gpu_product.h). Included by product.cu, and by tests,
// after gpu_code.h.
//
// A block computes 32 rows: of one matrix, or 16 of each of a gate's two.
#pragma once

#include "engine/kernels/cuda/product_block.inl.h"

namespace lockstep {
namespace {

template <Format kFormat, unsigned kGroups>
GPU_KERNEL_AT_ONCE(kProductWarps* kWarpThreads, kBlocksAtOnce<kGroups>)
void multiply_rows(GpuProduct product, size_t part_begin, size_t part_end) {
  const BlockPlace place = block_place(product, part_begin, part_end);
  const GpuMatrix& matrix = product.parts[place.part].matrix;
  const GpuPlanes planes = gpu_planes(gpu_layout(kFormat), matrix.rows, matrix.columns);
  const bool gate = product.finish == GpuFinish::kGate;
  const BlockWeights weights =
      place_panels<kFormat>(matrix, gate ? product.parts[1].matrix : matrix, gate, planes, place);
  const auto units = static_cast<unsigned>(planes.units);
  begin_weights<kFormat>(weights, units);
  follow_launches();
  const unsigned token_count = *product.token_count;
  // Not while copies go on: shared memory is another block's then.
  if (token_count <= product.token_begin) return wait_for_copies<0>();
  const size_t left = token_count - product.token_begin;
  const auto tokens =
      static_cast<unsigned>(left < product.token_limit ? left : product.token_limit);
  const ProductInput input = {product.input, product.input_stride_bytes, matrix.columns, tokens};
  multiply_window<kFormat, kGroups>(product, place, weights, units, input, /*first=*/0);
}

template <Format kFormat, unsigned kGroups>
void launch_groups(void* stream, const GpuProduct& product, size_t begin, size_t end) {
  const Grid grid = {.columns = static_cast<unsigned>(product_blocks(product, begin, end)),
                     .threads = kProductWarps * kWarpThreads,
                     .shared_bytes = product_shared_bytes<kFormat, kGroups>()};
  launch(stream, grid, multiply_rows<kFormat, kGroups>, product, begin, end);
}

template <Format kFormat>
void launch_product(void* stream, const GpuProduct& product, size_t begin, size_t end) {
  if (product.token_limit <= 8) return launch_groups<kFormat, 1>(stream, product, begin, end);
  if (product.token_limit <= 16) return launch_groups<kFormat, 2>(stream, product, begin, end);
  if (product.token_limit <= 32) return launch_groups<kFormat, 4>(stream, product, begin, end);
  return launch_groups<kFormat, 8>(stream, product, begin, end);
}

}  // namespace

void gpu_product(void* stream, const GpuProduct& product) {
  check_product(product);
  const GpuProduct window = window_of(product);
  for_each_run(product, [&]<Format kFormat>(size_t begin, size_t end) {
    launch_product<kFormat>(stream, window, begin, end);
  });
}

}  // namespace lockstep
