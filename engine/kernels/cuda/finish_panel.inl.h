// The steps after a product that a library has computed (gpu_panel.h). Included after gpu_code.h.
#pragma once

#include "engine/kernels/cuda/product_finish.inl.h"
#include "engine/kernels/gpu_panel.h"

namespace lockstep {
namespace {

constexpr unsigned kFinishThreads = 256;
// Blocks of 32 rows that a warp takes of a token: for all of them it needs the norm's factor once.
constexpr unsigned kFinishBlocks = 8;

// Which rows block `block` of the panel has, and which of the token's sums is the lane's.
struct PanelPlace {
  BlockPlace rows;
  size_t sum;
};

// The number of a part's rows that the panel has.
constexpr size_t own_rows(const GpuPanelSums& sums, size_t part) {
  const size_t left = sums.product.parts[part].matrix.rows - sums.panel.row_begin[part];
  return left < sums.panel.row_count[part] ? left : sums.panel.row_count[part];
}

constexpr size_t panel_blocks(const GpuPanelSums& sums) {
  if (sums.product.finish == GpuFinish::kGate) {
    return divide_up<size_t>(own_rows(sums, 0), kGpuPanelRows);
  }
  return sums.panel.rows() / kBlockRows;
}

GPU_FUNCTION PanelPlace panel_place(const GpuPanelSums& sums, size_t block) {
  const unsigned lane = lane_index();
  const GpuPanel& panel = sums.panel;
  if (sums.product.finish == GpuFinish::kGate) {
    const size_t row = panel.row_begin[0] + block * kGpuPanelRows;
    return {
        {0, row, row / kGpuPanelRows},
        lane / kGpuPanelRows * panel.row_count[0] + block * kGpuPanelRows + lane % kGpuPanelRows};
  }
  const size_t sum = block * kBlockRows + lane;
  size_t part = 0;
  for (; part + 1 < kGpuProductParts; ++part) {
    const size_t blocks = panel.row_count[part] / kBlockRows;
    if (block < blocks) break;
    block -= blocks;
  }
  const size_t row = panel.row_begin[part] + block * kBlockRows;
  return {{part, row, row / kBlockRows}, sum};
}

// A warp takes a token and some blocks of rows, a lane a row of each.
GPU_KERNEL_OF(kFinishThreads) void finish_panel(GpuPanelSums sums) {
  follow_launches();
  const GpuProduct& product = sums.product;
  const unsigned token_count = *product.token_count;
  if (token_count <= product.token_begin) return;
  const size_t left = token_count - product.token_begin;
  const size_t tokens = left < product.token_limit ? left : product.token_limit;
  const size_t row_count = sums.panel.rows();
  const size_t all_blocks = panel_blocks(sums);
  const size_t begin = static_cast<size_t>(block_column()) * kFinishBlocks;
  const size_t end = begin + kFinishBlocks < all_blocks ? begin + kFinishBlocks : all_blocks;
  const unsigned warps = thread_count() / kWarpThreads;
  for (unsigned token = block_row() * warps + warp_index(); token < tokens;
       token += block_rows() * warps) {
    const float factor = norm_factor(product.norm, token);
    for (size_t block = begin; block < end; ++block) {
      const PanelPlace place = panel_place(sums, block);
      finish_token(product, place.rows, sums.sums[token * row_count + place.sum], factor, token);
    }
  }
}

}  // namespace

void gpu_finish_panel(void* stream, const GpuPanelSums& sums) {
  GpuPanelSums window = sums;
  window.product = window_of(sums.product);
  const Grid grid = {
      .columns = static_cast<unsigned>(divide_up<size_t>(panel_blocks(sums), kFinishBlocks)),
      .rows = sums.grid_rows,
      .threads = kFinishThreads};
  launch(stream, grid, finish_panel, window);
}

}  // namespace lockstep
