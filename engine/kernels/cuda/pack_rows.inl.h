// Packs rows on the GPU: a thread writes what one lane of a tile product will read. Included by
// product.cu, and by tests, after gpu_code.h.
#pragma once

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/kernel_words.inl.h"
#include "engine/kernels/gpu_matrix.h"
#include "engine/kernels/gpu_tile.h"

namespace lockstep {
namespace {

constexpr unsigned kPackThreads = 128;

template <Format kFormat>
GPU_KERNEL void pack_rows(GpuPacking packing) {
  follow_launches();
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  const GpuPlanes planes = gpu_planes(kLayout, packing.rows, packing.columns);
  const size_t unit =
      static_cast<size_t>(block_column()) * (thread_count() / kWarpThreads) + warp_index();
  if (unit >= planes.units) return;
  const size_t row = static_cast<size_t>(block_row()) * kGpuPanelRows;
  const size_t left = packing.row_count - row;
  const GpuFileRows source = {packing.source + row * packing.stride_bytes, packing.stride_bytes,
                              left < kGpuPanelRows ? static_cast<uint32_t>(left) : kGpuPanelRows,
                              packing.columns};
  gpu_pack_lane(kFormat, source, planes, (packing.row_begin + row) / kGpuPanelRows, unit,
                lane_index(), packing.planes);
}

template <Format kFormat>
void launch_pack_rows(void* stream, const GpuPacking& packing) {
  const GpuPlanes planes = gpu_planes(gpu_layout(kFormat), packing.rows, packing.columns);
  constexpr unsigned kWarps = kPackThreads / kWarpThreads;
  // A grid has at most 65,535 rows.
  constexpr size_t kRowsMax = size_t{65'535} * kGpuPanelRows;
  for (size_t row = 0; row < packing.row_count; row += kRowsMax) {
    const size_t left = packing.row_count - row;
    GpuPacking part = packing;
    part.source += row * packing.stride_bytes;
    part.row_begin += row;
    part.row_count = left < kRowsMax ? left : kRowsMax;
    const Grid grid = {
        .columns = static_cast<unsigned>(divide_up<size_t>(planes.units, kWarps)),
        .rows = static_cast<unsigned>(divide_up<size_t>(part.row_count, kGpuPanelRows)),
        .threads = kPackThreads};
    launch(stream, grid, pack_rows<kFormat>, part);
  }
}

}  // namespace

void gpu_pack_rows(void* stream, const GpuPacking& packing) {
  CHECK(packing.row_begin % kGpuPanelRows == 0, "row {} begins no panel", packing.row_begin);
  with_format(packing.format,
              [&]<Format kFormat>() { launch_pack_rows<kFormat>(stream, packing); });
}

}  // namespace lockstep
