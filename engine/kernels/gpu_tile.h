// The place of a weight's bits in a GpuMatrix (gpu_matrix.h). All constexpr, for the host and for
// kernels (nvcc with --expt-relaxed-constexpr).
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/checked_math.h"
#include "engine/tensor/format.h"
#include "engine/tensor/formats/floats.h"
#include "engine/tensor/formats/k_blocks.h"
#include "engine/tensor/formats/simple_blocks.h"

namespace lockstep {

inline constexpr uint32_t kGpuPanelRows = GpuLayout::kTileRows;
inline constexpr uint32_t kGpuTileColumns = GpuLayout::kTileColumns;
inline constexpr uint32_t kGpuLanes = GpuLayout::kLanes;
inline constexpr uint32_t kGpuFactorUnits = 2;  // units of Q6_K that share a factor
inline constexpr uint32_t kGpuSteps = 4;        // tile products of 16 columns per tile

// The layout of the format where it is one of F and Others; else one without block_elements.
template <typename F, typename... Others>
constexpr GpuLayout gpu_layout_among(Format format) {
  constexpr Format kFormat = F::kTraits.format;
  if (format == kFormat) return F::gpu_layout();
  if constexpr (sizeof...(Others) > 0) return gpu_layout_among<Others...>(format);
  return {};
}

// Likewise of formats of codes. What these state for processors (formats/coded.h) nvcc does not
// take. Of Q3_K each unit has its own half and its 8 scales as IQ4_XS has them (gpu_scale_byte()).
constexpr GpuLayout gpu_layout_of_codes(Format format) {
  switch (format) {
    case Format::kQ2_K:
      return {256, 84, 2, 2, 0, 16, 0, 8, 16, 0, 4, 16, 80};
    case Format::kQ3_K:
      return {256, 110, 2, 2, 1, 32, 0, 8, 16, 96, 0, 16, 108};
    case Format::kIq4Nl:
      return {32, 18, 2, 4, 0, 2, 0, 8, 2, 0, 0, 32};
    case Format::kIq4Xs:
      return {256, 136, 4, 4, 0, 8, 0, 8, 8, 0, 0, 32};
    case Format::kMxfp4:
      return {32, 17, 2, 4, 0, 1, 0, 4, 1, 0, 0, 32};
    default:
      return {};
  }
}
// Whether quants stand for the entries of a table.
constexpr bool has_table(Format format) {
  return format == Format::kIq4Nl || format == Format::kIq4Xs || format == Format::kMxfp4;
}

// The formats that GPUs have kernels for.
constexpr GpuLayout gpu_layout(Format format) {
  const GpuLayout layout = gpu_layout_of_codes(format);
  if (layout.block_elements > 0) return layout;
  return gpu_layout_among<F32, F16, Bf16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K>(format);
}

// Whether GPUs have kernels for weights of the format.
constexpr bool has_gpu_kernels(Format format) {
  return gpu_layout(format).block_elements > 0;
}

constexpr bool has_minimums(Format format) {
  return format == Format::kQ4_1 || format == Format::kQ5_1 || format == Format::kQ4_K ||
         format == Format::kQ5_K || format == Format::kQ2_K;
}

// Entries 4 * `index` to 4 * `index` + 3 of a format's table, a byte each from the lowest on.
constexpr uint32_t gpu_table_word(Format format, uint32_t index) {
  uint32_t word = 0;
  for (uint32_t byte = 0; byte < 4; ++byte) {
    const size_t code = 4 * index + byte;
    const int8_t value = format == Format::kMxfp4 ? kFp4Values[code] : kUnevenValues[code];
    word |= static_cast<uint32_t>(static_cast<uint8_t>(value)) << 8 * byte;
  }
  return word;
}

// The offsets of planes, in bytes from the matrix's first; each is [panel][unit][...].
struct GpuPlanes {
  size_t panels;
  size_t units;  // of a panel
  size_t high;
  size_t scales;
  size_t factors;
  size_t size_bytes;
};

constexpr GpuPlanes gpu_planes(const GpuLayout& layout, size_t rows, size_t columns) {
  GpuPlanes planes = {};
  planes.panels = divide_up<size_t>(rows, kGpuPanelRows);
  planes.units = divide_up<size_t>(columns, layout.unit_columns());
  const size_t units = planes.panels * planes.units;
  planes.high = units * layout.quant_unit_bytes();
  planes.scales = planes.high + units * layout.high_unit_bytes();
  planes.factors = planes.scales + units * kGpuPanelRows * layout.scale_bytes;
  planes.size_bytes =
      planes.factors + units * kGpuPanelRows * layout.factor_bytes / kGpuFactorUnits;
  return planes;
}

// The row and the column of a tile that lane `lane` holds as half `half` of register `index` of the
// A operand in step `step` (multiply_tile in cuda/gpu_code.h). The order of the columns is ours to
// choose, as long as the B operand's is the same: where 32 columns share a scale, a lane's 8 of
// them lie side by side, so that it reads them of an activation by one load of 16 bytes; where 16
// do, its 4.
constexpr uint32_t gpu_tile_row(uint32_t lane, uint32_t index) {
  return lane / 4 + index % 2 * 8;
}
constexpr uint32_t gpu_tile_column(const GpuLayout& layout, uint32_t lane, uint32_t step,
                                   uint32_t index, uint32_t half) {
  const uint32_t place = lane % 4;
  const uint32_t element = index / 2 * 2 + half;
  if (layout.scale_columns == 16) return step * 16 + place * 4 + element;
  return step / 2 * 32 + place * 8 + step % 2 * 4 + element;
}

// Likewise the other way: who holds row `row` of the panel in column `column` of the tile.
struct GpuTilePlace {
  uint32_t lane;
  uint32_t step;
  uint32_t index;
  uint32_t half;
};
constexpr GpuTilePlace gpu_tile_place(const GpuLayout& layout, uint32_t row, uint32_t column) {
  const uint32_t element = column % 4;
  const uint32_t index = element / 2 * 2 + row / 8;
  if (layout.scale_columns == 16) {
    return {row % 8 * 4 + column % 16 / 4, column / 16, index, element % 2};
  }
  const uint32_t step = column / 32 * 2 + column % 8 / 4;
  return {row % 8 * 4 + column % 32 / 8, step, index, element % 2};
}

// Element `index` of a block of the file, as bits: its quant, or the number itself.
constexpr uint32_t gpu_file_byte(const std::byte* block, uint32_t offset) {
  return static_cast<uint32_t>(block[offset]);
}
constexpr uint32_t gpu_file_bits(Format format, const std::byte* block, uint32_t index) {
  const GpuLayout layout = gpu_layout(format);
  const std::byte* quants = block + layout.quants_begin;
  if (layout.quant_bits >= 8) {
    uint32_t bits = 0;
    for (uint32_t byte = 0; byte < layout.quant_bits / 8; ++byte) {
      bits |= gpu_file_byte(quants, index * (layout.quant_bits / 8) + byte) << (8 * byte);
    }
    return bits;
  }
  if (layout.quant_bits == 2) {
    const uint32_t four = gpu_file_byte(quants, index / 128 * 32 + index % 32);
    uint32_t bits = four >> (index % 128 / 32 * 2) & 3U;
    if (layout.high_bits == 1) {
      bits |= (gpu_file_byte(block, layout.high_begin + index % 32) >> (index / 32) & 1U) << 2U;
    }
    return bits;
  }
  if (layout.block_elements == 32 || format == Format::kIq4Xs) {
    const uint32_t both = gpu_file_byte(quants, index / 32 * 16 + index % 16);
    uint32_t bits = index % 32 < 16 ? both & 15U : both >> 4U;
    if (layout.high_bits == 1) {
      bits |= (gpu_file_byte(block, layout.high_begin + index / 8) >> (index % 8) & 1U) << 4U;
    }
    return bits;
  }
  if (format == Format::kQ6_K) {
    const uint32_t half = index / 128;
    const uint32_t within = index % 128;
    const uint32_t both = gpu_file_byte(quants, half * 64 + within % 64);
    const uint32_t pairs = gpu_file_byte(block, layout.high_begin + half * 32 + within % 32);
    return (within < 64 ? both & 15U : both >> 4U) | (pairs >> (within / 32 * 2) & 3U) << 4U;
  }
  const uint32_t group = index / 32;
  const uint32_t both = gpu_file_byte(quants, group / 2 * 32 + index % 32);
  uint32_t bits = group % 2 == 0 ? both & 15U : both >> 4U;
  if (layout.high_bits == 1) {
    bits |= (gpu_file_byte(block, layout.high_begin + index % 32) >> group & 1U) << 4U;
  }
  return bits;
}

// The place of a lane's quants. In a word of 4-bit quants register i has nibbles i (lower half) and
// i + 4, so that one shift and one mask give both halves, and a word of 2-bit quants has two steps'
// in the same way; of 8-bit quants two words hold the registers of a step, bytes 0 and 2 the
// first's, 1 and 3 the second's. A word is the lane's word `word` of the 16 bytes, of 2-bit quants
// 8, that it reads in piece `piece` of the tile.
struct GpuQuantPlace {
  uint32_t piece;
  uint32_t word;
  uint32_t shift;
};
constexpr GpuQuantPlace gpu_quant_place(const GpuLayout& layout, uint32_t step, uint32_t index,
                                        uint32_t half) {
  if (layout.quant_bits == 2) return {0, step / 2, 2 * (step % 2 * 4 + index) + 16 * half};
  if (layout.quant_bits == 4) return {0, step, 4 * (index + 4 * half)};
  if (layout.quant_bits == 8) {
    return {step / 2, step % 2 * 2 + index / 2, 8 * (index % 2 + 2 * half)};
  }
  return {step, index, 16 * half};
}
// The byte of the tile at which a lane's word lies.
constexpr uint32_t gpu_quant_byte(const GpuLayout& layout, uint32_t lane, uint32_t piece,
                                  uint32_t word) {
  return (piece * kGpuLanes + lane) * layout.quant_lane_bytes() + word * 4;
}

// High bits: bit `shift` of word `word` of the lane's words of the unit.
struct GpuHighPlace {
  uint32_t word;
  uint32_t shift;
};
constexpr GpuHighPlace gpu_high_place(const GpuLayout& layout, uint32_t tile, uint32_t step,
                                      uint32_t index, uint32_t half) {
  if (layout.high_bits == 1) return {tile, step * 4 + index + 16 * half};
  return {tile * 2 + step / 2, 2 * (step % 2 * 4 + index) + 16 * half};
}
// The byte of the unit at which word `word` of a lane lies: in pieces of 16 bytes a lane, or of
// less.
constexpr uint32_t gpu_high_byte(const GpuLayout& layout, uint32_t lane, uint32_t word) {
  const uint32_t bytes = layout.high_lane_bytes() < 16 ? layout.high_lane_bytes() : 16;
  return word * 4 / bytes * bytes * kGpuLanes + lane * bytes + word * 4 % bytes;
}

// An F32 tile holds, for each 4 columns, the 16 rows' 4.
constexpr uint32_t gpu_f32_byte(uint32_t row, uint32_t column) {
  return column / 4 * 256 + row * 16 + column % 4 * 4;
}

// Rows of a matrix as the file stores them, of one panel; where columns or rows end, zeros follow.
struct GpuFileRows {
  const std::byte* rows;  // the panel's first
  size_t stride_bytes;
  uint32_t row_count;  // 1 to 16
  size_t columns;
};

// The bits of row `row` of the panel in column `column`; 0 where there is none.
constexpr uint32_t gpu_source_bits(Format format, const GpuFileRows& source, uint32_t row,
                                   size_t column) {
  const GpuLayout layout = gpu_layout(format);
  if (row >= source.row_count || column >= source.columns) return 0;
  const std::byte* block =
      source.rows + row * source.stride_bytes + column / layout.block_elements * layout.block_bytes;
  return gpu_file_bits(format, block, static_cast<uint32_t>(column % layout.block_elements));
}

// The words that lane `lane` of the unit holds: its word in a piece of a tile, ...
constexpr uint32_t gpu_quant_word(Format format, const GpuFileRows& source, size_t unit,
                                  uint32_t tile, uint32_t lane, uint32_t piece, uint32_t word) {
  const GpuLayout layout = gpu_layout(format);
  const size_t first = unit * layout.unit_columns() + tile * kGpuTileColumns;
  if (layout.quant_bits == 32) {
    const uint32_t at = (piece * kGpuLanes + lane) * 16 + word * 4;
    return gpu_source_bits(format, source, at % 256 / 16, first + at / 256 * 4 + at % 16 / 4);
  }
  uint32_t bits = 0;
  for (uint32_t step = 0; step < kGpuSteps; ++step) {
    for (uint32_t part = 0; part < 8; ++part) {
      const GpuQuantPlace place = gpu_quant_place(layout, step, part / 2, part % 2);
      if (place.piece != piece || place.word != word) continue;
      const uint32_t column = gpu_tile_column(layout, lane, step, part / 2, part % 2);
      const uint32_t code =
          gpu_source_bits(format, source, gpu_tile_row(lane, part / 2), first + column);
      const uint32_t mask = layout.quant_bits < 8 ? (1U << layout.quant_bits) - 1 : 0xFFFFFFFFU;
      bits |= (code & mask) << place.shift;
    }
  }
  return bits;
}
// ... its word of high bits, ...
constexpr uint32_t gpu_high_word(Format format, const GpuFileRows& source, size_t unit,
                                 uint32_t lane, uint32_t word) {
  const GpuLayout layout = gpu_layout(format);
  const uint32_t tile = word / layout.high_bits;
  const size_t first = unit * layout.unit_columns() + tile * kGpuTileColumns;
  uint32_t bits = 0;
  for (uint32_t step = 0; step < kGpuSteps; ++step) {
    for (uint32_t part = 0; part < 8; ++part) {
      const GpuHighPlace place = gpu_high_place(layout, tile, step, part / 2, part % 2);
      if (place.word != word) continue;
      const uint32_t column = gpu_tile_column(layout, lane, step, part / 2, part % 2);
      const uint32_t code =
          gpu_source_bits(format, source, gpu_tile_row(lane, part / 2), first + column);
      bits |= code >> layout.quant_bits << place.shift;
    }
  }
  return bits;
}
// Scale `index` of 16 of a block of Q3_K: 6 bits, with an offset of 32.
constexpr uint32_t gpu_q3_k_scale(const std::byte* block, uint32_t index) {
  const uint32_t scales = gpu_layout(Format::kQ3_K).scales_begin;
  const uint32_t lower = gpu_file_byte(block, scales + index % 8) >> (index / 8 * 4) & 15U;
  const uint32_t upper = gpu_file_byte(block, scales + 8 + index % 4) >> (index / 4 * 2) & 3U;
  return lower | upper << 4U;
}
// Byte `byte` of what a unit has of a block of Q3_K whose scales from `first` on are its own: the
// half, the upper two bits of each scale, the lower four.
constexpr uint32_t gpu_q3_k_scale_byte(const std::byte* block, uint32_t first, uint32_t byte) {
  if (byte < 2) return gpu_file_byte(block, gpu_layout(Format::kQ3_K).factor_begin + byte);
  uint32_t bits = 0;
  if (byte < 4) {
    for (uint32_t k = 0; k < 4; ++k) {
      bits |= gpu_q3_k_scale(block, first + (byte - 2) * 4 + k) >> 4U << (2 * k);
    }
    return bits;
  }
  for (uint32_t k = 0; k < 2; ++k) {
    bits |= (gpu_q3_k_scale(block, first + (byte - 4) * 2 + k) & 15U) << (4 * k);
  }
  return bits;
}
// ... byte `byte` of row `row`'s scales, ...
constexpr std::byte gpu_scale_byte(Format format, const GpuFileRows& source, size_t unit,
                                   uint32_t row, uint32_t byte) {
  const GpuLayout layout = gpu_layout(format);
  const size_t first = unit * layout.unit_columns();
  const size_t block = first / layout.block_elements + byte / layout.block_scales;
  if (row >= source.row_count || block * layout.block_elements >= source.columns) {
    return std::byte{0};
  }
  // If a unit is a part of a block, so are its scales.
  const size_t within = first % layout.block_elements * layout.block_scales / layout.block_elements;
  const std::byte* own = source.rows + row * source.stride_bytes + block * layout.block_bytes;
  if (format == Format::kQ3_K) {
    return static_cast<std::byte>(gpu_q3_k_scale_byte(own, static_cast<uint32_t>(within), byte));
  }
  return own[layout.scales_begin + within + byte % layout.block_scales];
}
// ... and of its factor.
constexpr std::byte gpu_factor_byte(Format format, const GpuFileRows& source, size_t unit,
                                    uint32_t row, uint32_t byte) {
  const GpuLayout layout = gpu_layout(format);
  if (row >= source.row_count) return std::byte{0};
  return source.rows[row * source.stride_bytes + unit / kGpuFactorUnits * layout.block_bytes +
                     layout.factor_begin + byte];
}

// Writes what lane `lane` holds of unit `unit` of panel `panel`: its quants, its high bits, and, of
// the first 16 lanes, the scales of row `lane`.
constexpr void gpu_pack_lane(Format format, const GpuFileRows& source, const GpuPlanes& planes,
                             size_t panel, size_t unit, uint32_t lane, std::byte* out) {
  const GpuLayout layout = gpu_layout(format);
  const size_t at = panel * planes.units + unit;
  const auto store = [](std::byte* to, uint32_t word) {
    for (uint32_t byte = 0; byte < 4; ++byte) to[byte] = static_cast<std::byte>(word >> 8 * byte);
  };
  std::byte* quants = out + at * layout.quant_unit_bytes();
  for (uint32_t tile = 0; tile < layout.unit_tiles; ++tile) {
    const uint32_t lane_bytes = layout.quant_lane_bytes();
    for (uint32_t piece = 0; piece < layout.tile_bytes() / (kGpuLanes * lane_bytes); ++piece) {
      for (uint32_t word = 0; word < lane_bytes / 4; ++word) {
        store(quants + tile * layout.tile_bytes() + gpu_quant_byte(layout, lane, piece, word),
              gpu_quant_word(format, source, unit, tile, lane, piece, word));
      }
    }
  }
  std::byte* high = out + planes.high + at * layout.high_unit_bytes();
  for (uint32_t word = 0; word < layout.high_lane_bytes() / 4; ++word) {
    store(high + gpu_high_byte(layout, lane, word),
          gpu_high_word(format, source, unit, lane, word));
  }
  if (lane >= kGpuPanelRows) return;
  const size_t row = at * kGpuPanelRows + lane;
  for (uint32_t byte = 0; byte < layout.scale_bytes; ++byte) {
    out[planes.scales + row * layout.scale_bytes + byte] =
        gpu_scale_byte(format, source, unit, lane, byte);
  }
  if (unit % kGpuFactorUnits != 0) return;
  const size_t factor = at / kGpuFactorUnits * kGpuPanelRows + lane;
  for (uint32_t byte = 0; byte < layout.factor_bytes; ++byte) {
    out[planes.factors + factor * layout.factor_bytes + byte] =
        gpu_factor_byte(format, source, unit, lane, byte);
  }
}

}  // namespace lockstep
