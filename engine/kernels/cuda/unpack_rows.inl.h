// Unpacks rows of a GpuMatrix to bf16 (gpu_panel.h). Included after gpu_code.h.
//
// A warp takes some tiles beside one another: its lanes read of a tile what they would read for a
// tile product, and hold 8 neighbouring columns of two rows then, which they write at once (where
// 16 columns share a scale 4).
#pragma once

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/kernel_words.inl.h"
#include "engine/kernels/cuda/product_weights.inl.h"
#include "engine/kernels/gpu_panel.h"

namespace lockstep {
namespace {

constexpr unsigned kUnpackThreads = 128;
// Tiles of a warp, for which it finds its place once, and how many of them it has read before it
// writes the first: a load does not pass a store.
constexpr unsigned kUnpackTiles = 4;
constexpr unsigned kUnpackAtOnce = 2;

// The place of a tile's weights: its unit's in each plane, and which tile of the unit it is.
struct TilePlace {
  const std::byte* quants;
  const std::byte* high;
  const std::byte* scales;
  const std::byte* factors;
  unsigned tile;
};

template <Format kFormat>
GPU_FUNCTION TilePlace place_tile(const GpuMatrix& matrix, const GpuPlanes& planes, size_t panel,
                                  size_t column) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  const size_t at = panel * planes.units + column / kLayout.unit_columns();
  return {
      matrix.planes + at * kLayout.quant_unit_bytes(),
      matrix.planes + planes.high + at * kLayout.high_unit_bytes(),
      matrix.planes + planes.scales + at * kGpuPanelRows * kLayout.scale_bytes,
      matrix.planes + planes.factors + at / kGpuFactorUnits * kGpuPanelRows * kLayout.factor_bytes,
      static_cast<unsigned>(column % kLayout.unit_columns() / kGpuTileColumns)};
}

// The scale of row `row` of the panel for step `step` of the tile.
template <Format kFormat>
GPU_FUNCTION Scale tile_scale(const TilePlace& place, unsigned row, unsigned step) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  constexpr unsigned kStepScales = 32 / kLayout.scale_columns;  // of two steps
  const unsigned index = (place.tile * kGpuSteps + step) * kStepScales / 2;
  return scale_of<kFormat>(place.scales + row * kLayout.scale_bytes,
                           place.factors + row * kLayout.factor_bytes, index);
}

// Two quants, or two weights, as a word of bf16.
template <Format kFormat>
GPU_FUNCTION uint32_t scaled_pair(uint32_t pair, const Scale& scale) {
  float lower = multiply(scale.scale, bits_to_float(pair << 16U));
  float upper = multiply(scale.scale, bits_to_float(pair & 0xFFFF0000U));
  if constexpr (has_minimums(kFormat)) {
    lower += scale.minimum;
    upper += scale.minimum;
  }
  return bf16_pair(lower, upper);
}

// Unpacks the lane's part of a step: 4 columns each of the rows lane / 4 and 8 more, as words of
// two. `quants`: of small ones the lane's of the tile.
template <Format kFormat>
GPU_FUNCTION void unpack_step(const TilePlace& place, const LaneQuants<kFormat>& quants,
                              unsigned step, Words2 (&rows)[2]) {
  uint32_t a[Stage<kFormat>::kParts][4];
  if constexpr (kIsSmall<kFormat>) {
    read_quants<kFormat, /*kBiased=*/false>(quants, place.high, place.tile, step, a[0]);
  } else {
    read_operand<kFormat, /*kBiased=*/false>(place.quants, place.high, place.tile, step, a);
  }
  GPU_UNROLL
  for (unsigned row = 0; row < 2; ++row) {
    if constexpr (gpu_layout(kFormat).quant_bits == 16) {
      rows[row] = {{a[0][row], a[0][row + 2]}};
    } else {
      const Scale scale = tile_scale<kFormat>(place, lane_index() / 4 + row * 8, step);
      rows[row] = {
          {scaled_pair<kFormat>(a[0][row], scale), scaled_pair<kFormat>(a[0][row + 2], scale)}};
    }
  }
}

// A lane's part of a tile: two rows of each step.
struct UnpackedTile {
  Words2 steps[kGpuSteps][2];
};

// Units are whole, whatever columns the matrix has.
template <Format kFormat>
GPU_FUNCTION void unpack_tile(const TilePlace& place, UnpackedTile& tile) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  LaneQuants<kFormat> quants = {};
  const std::byte* const own =
      place.quants + place.tile * kLayout.tile_bytes() + lane_index() * kLayout.quant_lane_bytes();
  if constexpr (kLayout.quant_bits == 4) quants = stream_16(own);
  if constexpr (kLayout.quant_bits == 2) quants = stream_8(own);
  GPU_UNROLL
  for (unsigned step = 0; step < kGpuSteps; ++step) {
    unpack_step<kFormat>(place, quants, step, tile.steps[step]);
  }
}

// `out`: of the lane's first row.
template <Format kFormat>
GPU_FUNCTION void store_tile(const UnpackedTile& tile, size_t column, size_t stride,
                             uint16_t* out) {
  GPU_UNROLL
  for (unsigned half = 0; half < 2; ++half) {
    const size_t begin = column + half * 32;
    if (begin >= stride) return;
    GPU_UNROLL
    for (unsigned row = 0; row < 2; ++row) {
      uint16_t* const to = out + row * 8 * stride + begin;
      const Words2& lower = tile.steps[half * 2][row];
      const Words2& upper = tile.steps[half * 2 + 1][row];
      if constexpr (gpu_layout(kFormat).scale_columns == 16) {
        write_8(to + lane_index() % 4 * 4, lower);
        write_8(to + 16 + lane_index() % 4 * 4, upper);
      } else {
        write_16(to + lane_index() % 4 * 8,
                 {{lower.words[0], lower.words[1], upper.words[0], upper.words[1]}});
      }
    }
  }
}

template <Format kFormat>
GPU_KERNEL_OF(kUnpackThreads)
void unpack_rows(GpuUnpacking unpacking) {
  follow_launches();
  const GpuMatrix& matrix = unpacking.matrix;
  const size_t first =
      (static_cast<size_t>(block_column()) * (thread_count() / kWarpThreads) + warp_index()) *
      kUnpackTiles * kGpuTileColumns;
  const GpuPlanes planes = gpu_planes(gpu_layout(kFormat), matrix.rows, matrix.columns);
  const size_t panel = unpacking.row_begin / kGpuPanelRows + block_row();
  const bool present = panel < planes.panels;
  const size_t stride = gpu_panel_columns(matrix.columns);
  uint16_t* const out = unpacking.rows + (block_row() * kGpuPanelRows + lane_index() / 4) * stride;
  GPU_KEEP_LOOP
  for (unsigned begin = 0; begin < kUnpackTiles; begin += kUnpackAtOnce) {
    UnpackedTile tiles[kUnpackAtOnce] = {};
    GPU_UNROLL
    for (unsigned index = 0; index < kUnpackAtOnce; ++index) {
      const size_t column = first + (begin + index) * kGpuTileColumns;
      if (!present || column >= matrix.columns) continue;
      unpack_tile<kFormat>(place_tile<kFormat>(matrix, planes, panel, column), tiles[index]);
    }
    GPU_UNROLL
    for (unsigned index = 0; index < kUnpackAtOnce; ++index) {
      store_tile<kFormat>(tiles[index], first + (begin + index) * kGpuTileColumns, stride, out);
    }
  }
}

template <Format kFormat>
void launch_unpack_rows(void* stream, const GpuUnpacking& unpacking) {
  constexpr size_t kWarps = kUnpackThreads / kWarpThreads;
  const size_t tiles = divide_up<size_t>(unpacking.matrix.columns, kGpuTileColumns);
  const Grid grid = {.columns = static_cast<unsigned>(divide_up(tiles, kWarps * kUnpackTiles)),
                     .rows = static_cast<unsigned>(unpacking.row_count / kGpuPanelRows),
                     .threads = kUnpackThreads};
  launch(stream, grid, unpack_rows<kFormat>, unpacking);
}

}  // namespace

void gpu_unpack_rows(void* stream, const GpuUnpacking& unpacking) {
  // A grid has at most 65,535 rows.
  CHECK(unpacking.row_begin % kGpuPanelRows == 0 && unpacking.row_count % kGpuPanelRows == 0 &&
            unpacking.row_count / kGpuPanelRows <= 65'535,
        "rows {} and {} more are no panels", unpacking.row_begin, unpacking.row_count);
  CHECK(unpacking.matrix.format != Format::kF32, "F32 weights are not rounded to bf16");
  with_format(unpacking.matrix.format, [&]<Format kFormat>() {
    if constexpr (kFormat != Format::kF32) launch_unpack_rows<kFormat>(stream, unpacking);
  });
}

}  // namespace lockstep
