// The kernel of gpu_rows.h. Included after gpu_code.h.
#pragma once

#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/kernel_words.inl.h"
#include "engine/kernels/cuda/weight_scales.inl.h"
#include "engine/kernels/gpu_rows.h"
#include "engine/kernels/gpu_tile.h"

namespace lockstep {
namespace {

constexpr unsigned kEmbedThreads = 128;

// A row of a table: row `row` of a panel whose first unit is the planes' unit `first`.
struct TableRow {
  const std::byte* bytes;
  GpuPlanes planes;
  size_t first;
  uint32_t row;
};

// The quant of column `column` of unit `at` of the planes, or the number's bits.
template <Format kFormat>
GPU_FUNCTION uint32_t table_bits(const TableRow& row, size_t at, uint32_t column) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  const std::byte* quants = row.bytes + at * kLayout.quant_unit_bytes();
  if constexpr (kLayout.quant_bits == 32) {
    return load_4(quants + gpu_f32_byte(row.row, column));
  } else {
    const uint32_t tile = column / kGpuTileColumns;
    const GpuTilePlace held = gpu_tile_place(kLayout, row.row, column % kGpuTileColumns);
    const GpuQuantPlace place = gpu_quant_place(kLayout, held.step, held.index, held.half);
    quants +=
        tile * kLayout.tile_bytes() + gpu_quant_byte(kLayout, held.lane, place.piece, place.word);
    uint32_t bits = load_4(quants) >> place.shift;
    bits &= (1U << kLayout.quant_bits) - 1;
    if constexpr (kLayout.high_bits > 0) {
      const GpuHighPlace high = gpu_high_place(kLayout, tile, held.step, held.index, held.half);
      const uint32_t word = load_4(row.bytes + row.planes.high + at * kLayout.high_unit_bytes() +
                                   gpu_high_byte(kLayout, held.lane, high.word));
      bits |= (word >> high.shift & ((1U << kLayout.high_bits) - 1)) << kLayout.quant_bits;
    }
    return bits;
  }
}

// As the file's format defines it.
template <Format kFormat>
GPU_FUNCTION float table_value(const TableRow& row, size_t column) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  const size_t at = row.first + column / kLayout.unit_columns();
  const auto within = static_cast<uint32_t>(column % kLayout.unit_columns());
  const uint32_t bits = table_bits<kFormat>(row, at, within);
  if constexpr (kFormat == Format::kF32) {
    return bits_to_float(bits);
  } else if constexpr (kFormat == Format::kF16) {
    return from_half(static_cast<uint16_t>(bits));
  } else if constexpr (kFormat == Format::kBf16) {
    return from_bf16(static_cast<uint16_t>(bits));
  } else {
    const size_t scales = (at * kGpuPanelRows + row.row) * kLayout.scale_bytes;
    const size_t factor = (at / kGpuFactorUnits * kGpuPanelRows + row.row) * kLayout.factor_bytes;
    const Scale scale =
        scale_of<kFormat>(row.bytes + row.planes.scales + scales,
                          row.bytes + row.planes.factors + factor, within / kLayout.scale_columns);
    int quant = static_cast<int>(bits) - static_cast<int>(quant_offset<kFormat>());
    if constexpr (kFormat == Format::kQ8_0) quant = static_cast<int8_t>(bits);
    if constexpr (has_table(kFormat)) quant = table_entry<kFormat>(bits);
    const float value = multiply(scale.scale, static_cast<float>(quant));
    // Without a minimum nothing is added: -0 + 0 is 0.
    return has_minimums(kFormat) ? value + scale.minimum : value;
  }
}

// A thread takes a column.
template <Format kFormat>
GPU_KERNEL_OF(kEmbedThreads)
void embed_rows(GpuEmbedding embedding) {
  follow_launches();
  const GpuMatrix& table = embedding.table;
  const size_t column = static_cast<size_t>(block_column()) * thread_count() + thread_index();
  if (column >= table.columns) return;
  const GpuPlanes planes = gpu_planes(gpu_layout(kFormat), table.rows, table.columns);
  const unsigned tokens = embedding.batch.counts->tokens;
  for (unsigned token = block_row(); token < tokens; token += block_rows()) {
    uint32_t id = embedding.ids[token];
    if (embedding.picks != nullptr && (id & kGpuPickOfRow) != 0) {
      id = embedding.picks[id & ~kGpuPickOfRow];
    }
    const size_t at = token * embedding.output_stride + column;
    if (id < embedding.row_begin || id - embedding.row_begin >= table.rows) {
      if (embedding.others_zero) embedding.output[at] = -0.0F;
      continue;
    }
    const size_t row = size_t{id} - embedding.row_begin;
    const TableRow place = {table.planes, planes, row / kGpuPanelRows * planes.units,
                            static_cast<uint32_t>(row % kGpuPanelRows)};
    const float value = table_value<kFormat>(place, column);
    embedding.output[at] = value;
    for (size_t copy = 0; copy < embedding.copy_count; ++copy) embedding.copies[copy][at] = value;
  }
}

template <Format kFormat>
void launch_embed_rows(void* stream, const GpuEmbedding& embedding) {
  constexpr size_t kThreads = kEmbedThreads;
  const size_t blocks = divide_up(embedding.table.columns, kThreads);
  launch(stream,
         {.columns = static_cast<unsigned>(blocks),
          .rows = embedding.grid_rows,
          .threads = kEmbedThreads},
         embed_rows<kFormat>, embedding);
}

}  // namespace

void gpu_embed_rows(void* stream, const GpuEmbedding& embedding) {
  with_format(embedding.table.format,
              [&]<Format kFormat>() { launch_embed_rows<kFormat>(stream, embedding); });
}

}  // namespace lockstep
