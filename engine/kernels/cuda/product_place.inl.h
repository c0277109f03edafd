// Which rows of weights a block multiplies, and where they lie. Included by product_block.inl.h and
// many_product.inl.h.
#pragma once

#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/product_finish.inl.h"

namespace lockstep {
namespace {

constexpr unsigned kSumsStride = 36;  // floats: a warp's stores meet in no bank of shared memory

// The lane's part of unit `unit` of a panel.
template <Format kFormat>
GPU_FUNCTION void place_panel(const GpuMatrix& matrix, const GpuPlanes& planes, size_t panel,
                              unsigned unit, unsigned index, BlockWeights& weights) {
  using S = Stage<kFormat>;
  // A last panel that is not there: its rows are computed for nothing.
  const size_t first = (panel < planes.panels ? panel : planes.panels - 1) * planes.units + unit;
  const unsigned lane = lane_index();
  weights.quants[index] = matrix.planes + first * S::kQuantBytes + lane * 16;
  constexpr unsigned kHighLane = S::kLayout.high_lane_bytes();
  weights.high[index] = matrix.planes + planes.high + first * S::kHighBytes +
                        lane * (kHighLane < 16 ? kHighLane : 16);
  if (lane / kGpuPanelRows != index) return;
  const unsigned row = lane % kGpuPanelRows;
  weights.scales =
      matrix.planes + planes.scales + (first * kGpuPanelRows + row) * S::kLayout.scale_bytes;
  weights.factors = matrix.planes + planes.factors +
                    (first / kGpuFactorUnits * kGpuPanelRows + row) * S::kLayout.factor_bytes;
}

// The same of both panels of a block: of one matrix, or of a gate's two.
template <Format kFormat>
GPU_FUNCTION BlockWeights place_panels(const GpuMatrix& first, const GpuMatrix& second, bool gate,
                                       const GpuPlanes& planes, const BlockPlace& place,
                                       unsigned unit) {
  const size_t panel = place.row / kGpuPanelRows;
  BlockWeights weights;
  place_panel<kFormat>(first, planes, panel, unit, 0, weights);
  place_panel<kFormat>(second, planes, gate ? panel : panel + 1, unit, 1, weights);
  return weights;
}

// The same of a product's block.
template <Format kFormat>
GPU_FUNCTION BlockWeights place_panels(const GpuProduct& product, const GpuPlanes& planes,
                                       const BlockPlace& place, unsigned unit) {
  const bool gate = product.finish == GpuFinish::kGate;
  const GpuMatrix& matrix = product.parts[place.part].matrix;
  return place_panels<kFormat>(matrix, gate ? product.parts[1].matrix : matrix, gate, planes, place,
                               unit);
}

// Which rows block `block` computes, of parts [part, part_end), or of both parts of a gate.
GPU_FUNCTION BlockPlace block_place(const GpuProduct& product, size_t part, size_t part_end,
                                    size_t block) {
  if (product.finish == GpuFinish::kGate) return {0, block * kGpuPanelRows, block};
  for (; part + 1 < part_end; ++part) {
    const size_t blocks = divide_up<size_t>(product.parts[part].matrix.rows, kBlockRows);
    if (block < blocks) break;
    block -= blocks;
  }
  return {part, block * kBlockRows, block};
}

// Blocks of the parts [begin, end), which are of one format.
constexpr size_t product_blocks(const GpuProduct& product, size_t begin, size_t end) {
  if (product.finish == GpuFinish::kGate) {
    return divide_up<size_t>(product.parts[0].matrix.rows, kGpuPanelRows);
  }
  size_t blocks = 0;
  for (size_t part = begin; part < end; ++part) {
    blocks += divide_up<size_t>(product.parts[part].matrix.rows, kBlockRows);
  }
  return blocks;
}

}  // namespace
}  // namespace lockstep
