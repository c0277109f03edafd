#include "engine/kernels/gpu_matrix.h"

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "engine/kernels/gpu_tile.h"

namespace lockstep {
namespace {

// The inverse of gpu_file_bits(): puts element `index` into a block of zeros.
void put_file_bits(Format format, uint32_t bits, uint32_t index, std::byte* block) {
  const GpuLayout layout = gpu_layout(format);
  const auto put = [block](uint32_t offset, uint32_t value) {
    block[offset] |= static_cast<std::byte>(value);
  };
  if (layout.quant_bits >= 8) {
    for (uint32_t byte = 0; byte < layout.quant_bits / 8; ++byte) {
      put(layout.quants_begin + index * (layout.quant_bits / 8) + byte, bits >> (8 * byte) & 255U);
    }
    return;
  }
  if (layout.quant_bits == 2) {
    const uint32_t shift = index % 128 / 32 * 2;
    put(layout.quants_begin + index / 128 * 32 + index % 32, (bits & 3U) << shift);
    if (layout.high_bits == 1) put(layout.high_begin + index % 32, bits >> 2U << (index / 32));
    return;
  }
  const uint32_t low = bits & 15U;
  const uint32_t high = bits >> 4U;
  if (layout.block_elements == 32 || format == Format::kIq4Xs) {
    put(layout.quants_begin + index / 32 * 16 + index % 16, index % 32 < 16 ? low : low << 4U);
    if (layout.high_bits == 1) put(layout.high_begin + index / 8, high << index % 8);
    return;
  }
  if (format == Format::kQ6_K) {
    const uint32_t half = index / 128;
    const uint32_t within = index % 128;
    put(layout.quants_begin + half * 64 + within % 64, within < 64 ? low : low << 4U);
    put(layout.high_begin + half * 32 + within % 32, high << (within / 32 * 2));
    return;
  }
  const uint32_t group = index / 32;
  put(layout.quants_begin + group / 2 * 32 + index % 32, group % 2 == 0 ? low : low << 4U);
  if (layout.high_bits == 1) put(layout.high_begin + index % 32, high << group);
}

uint32_t load_word(const std::byte* bytes) {
  uint32_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// A matrix and one of its rows.
struct Row {
  Format format;
  GpuLayout layout;
  GpuPlanes planes;
  const std::byte* bytes;
  size_t panel;
  uint32_t row;  // of the panel
};

// The row's quants of unit `unit` of its panel into zeroed `blocks`, the first of which begins
// `column_begin` columns before it.
void unpack_quants(const Row& row, size_t unit, uint32_t column_begin, std::byte* blocks) {
  const GpuLayout& layout = row.layout;
  const size_t at = row.panel * row.planes.units + unit;
  const std::byte* quants = row.bytes + at * layout.quant_unit_bytes();
  const std::byte* high = row.bytes + row.planes.high + at * layout.high_unit_bytes();
  const auto put = [&](uint32_t column_of_unit, uint32_t bits) {
    const uint32_t column = column_begin + column_of_unit;
    std::byte* block = blocks + column / layout.block_elements * layout.block_bytes;
    put_file_bits(row.format, bits, column % layout.block_elements, block);
  };
  if (layout.quant_bits == 32) {
    for (uint32_t column = 0; column < kGpuTileColumns; ++column) {
      put(column, load_word(quants + gpu_f32_byte(row.row, column)));
    }
    return;
  }
  for (uint32_t part = 0; part < layout.unit_tiles * kGpuSteps * 4 * 8; ++part) {
    const uint32_t lane = row.row % 8 * 4 + part / 8 % 4;
    const uint32_t step = part / 32 % kGpuSteps;
    const uint32_t tile = part / 128;
    const uint32_t index = part / 2 % 4;
    const uint32_t half = part % 2;
    if (gpu_tile_row(lane, index) != row.row) continue;
    const GpuQuantPlace place = gpu_quant_place(layout, step, index, half);
    const std::byte* word =
        quants + tile * layout.tile_bytes() + gpu_quant_byte(layout, lane, place.piece, place.word);
    uint32_t bits = load_word(word) >> place.shift;
    bits &= (1U << layout.quant_bits) - 1;
    if (layout.high_bits > 0) {
      const GpuHighPlace at_high = gpu_high_place(layout, tile, step, index, half);
      const uint32_t more = load_word(high + gpu_high_byte(layout, lane, at_high.word));
      bits |= (more >> at_high.shift & ((1U << layout.high_bits) - 1)) << layout.quant_bits;
    }
    put(tile * kGpuTileColumns + gpu_tile_column(layout, lane, step, index, half), bits);
  }
}

// The inverse of gpu_q3_k_scale_byte(): puts a unit's half and its scales, from `first` on, into a
// block of zeros.
void put_q3_k_scales(const std::byte* scales, uint32_t first, std::byte* block) {
  const GpuLayout layout = gpu_layout(Format::kQ3_K);
  std::memcpy(block + layout.factor_begin, scales, 2);
  for (uint32_t k = 0; k < 8; ++k) {
    const uint32_t index = first + k;
    const uint32_t upper = gpu_file_byte(scales, 2 + k / 4) >> (2 * (k % 4)) & 3U;
    const uint32_t lower = gpu_file_byte(scales, 4 + k / 2) >> (4 * (k % 2)) & 15U;
    std::byte* const own = block + layout.scales_begin;
    own[index % 8] |= static_cast<std::byte>(lower << (index / 8 * 4));
    own[8 + index % 4] |= static_cast<std::byte>(upper << (index / 4 * 2));
  }
}

// Likewise its scales and its factor.
void unpack_scales(const Row& row, size_t unit, uint32_t column_begin, std::byte* blocks) {
  const GpuLayout& layout = row.layout;
  const size_t at = row.panel * row.planes.units + unit;
  const std::byte* scales =
      row.bytes + row.planes.scales + (at * kGpuPanelRows + row.row) * layout.scale_bytes;
  const uint32_t before = column_begin * layout.block_scales / layout.block_elements;
  if (row.format == Format::kQ3_K) return put_q3_k_scales(scales, before, blocks);
  for (uint32_t byte = 0; byte < layout.scale_bytes; ++byte) {
    const uint32_t place = before + byte;
    blocks[place / layout.block_scales * layout.block_bytes + layout.scales_begin +
           place % layout.block_scales] = scales[byte];
  }
  const std::byte* factor = row.bytes + row.planes.factors +
                            (at / kGpuFactorUnits * kGpuPanelRows + row.row) * layout.factor_bytes;
  for (uint32_t byte = 0; byte < layout.factor_bytes; ++byte) {
    blocks[layout.factor_begin + byte] = factor[byte];
  }
}

}  // namespace

size_t gpu_matrix_bytes(Format format, size_t rows, size_t columns) {
  CHECK(has_gpu_kernels(format), "GPUs have no kernels for {}", traits(format).name);
  return gpu_planes(gpu_layout(format), rows, columns).size_bytes;
}

void pack_gpu_rows(const GpuPacking& packing) {
  CHECK(packing.row_begin % kGpuPanelRows == 0, "row {} begins no panel", packing.row_begin);
  const GpuPlanes planes = gpu_planes(gpu_layout(packing.format), packing.rows, packing.columns);
  for (size_t row = 0; row < packing.row_count; row += kGpuPanelRows) {
    const size_t left = packing.row_count - row;
    const GpuFileRows source = {
        .rows = packing.source + row * packing.stride_bytes,
        .stride_bytes = packing.stride_bytes,
        .row_count = left < kGpuPanelRows ? static_cast<uint32_t>(left) : kGpuPanelRows,
        .columns = packing.columns};
    const size_t panel = (packing.row_begin + row) / kGpuPanelRows;
    for (size_t unit = 0; unit < planes.units; ++unit) {
      for (uint32_t lane = 0; lane < kGpuLanes; ++lane) {
        gpu_pack_lane(packing.format, source, planes, panel, unit, lane, packing.planes);
      }
    }
  }
}

void unpack_gpu_row(const GpuMatrix& matrix, size_t row, float* values) {
  CHECK(row < matrix.rows, "row {} of {}", row, matrix.rows);
  const GpuLayout layout = gpu_layout(matrix.format);
  const Row unpacked = {.format = matrix.format,
                        .layout = layout,
                        .planes = gpu_planes(layout, matrix.rows, matrix.columns),
                        .bytes = matrix.planes,
                        .panel = row / kGpuPanelRows,
                        .row = static_cast<uint32_t>(row % kGpuPanelRows)};
  const uint32_t step = std::max(layout.unit_columns(), layout.block_elements);
  constexpr size_t kStepBytesMax = 256;  // 64 floats; a K block has less
  for (size_t column = 0; column < matrix.columns; column += step) {
    std::byte blocks[kStepBytesMax] = {};
    for (uint32_t begin = 0; begin < step; begin += layout.unit_columns()) {
      const size_t unit = (column + begin) / layout.unit_columns();
      unpack_quants(unpacked, unit, begin, blocks);
      unpack_scales(unpacked, unit, begin, blocks);
    }
    traits(matrix.format)
        .dequantize(blocks, std::min<size_t>(step, matrix.columns - column), values + column);
  }
}

}  // namespace lockstep
