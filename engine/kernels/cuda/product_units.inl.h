// A warp's sums over the units of columns that it takes. Included by product.inl.h.
#pragma once

#include "engine/kernels/cuda/product_weights.inl.h"

namespace lockstep {
namespace {

constexpr unsigned kGroupTokens = 8;

// Sums as multiply_tile() leaves them, of each panel and 8 tokens.
template <unsigned kGroups>
struct ProductSums {
  float sums[kBlockPanels][kGroups][4] = {};
};

// The activations of consecutive tokens.
struct ProductInput {
  const std::byte* rows;
  size_t stride_bytes;
  size_t columns;
  unsigned tokens;

  // The row of a group's token that a lane reads for tile products: of the token lane / 4.
  GPU_FUNCTION const std::byte* lane_row(unsigned, unsigned token) const { return row(token); }
  GPU_FUNCTION const std::byte* row(unsigned token) const { return rows + token * stride_bytes; }
  // Whose norm's factor a token has.
  GPU_FUNCTION size_t source_of(unsigned token) const { return token; }
};

// 8 columns of bf16, from 8 * (lane % 4) on of the 32 that begin at `column`; or 4 of 16.
template <typename Input>
GPU_FUNCTION Words4 read_wide(const Input& input, unsigned group, size_t column) {
  const unsigned token = group * kGroupTokens + lane_index() / 4;
  if (token >= input.tokens || column >= input.columns) return {};
  return load_16(input.lane_row(group, token) + column * 2 + lane_index() % 4 * 16);
}
template <typename Input>
GPU_FUNCTION Words2 read_narrow(const Input& input, unsigned group, size_t column) {
  const unsigned token = group * kGroupTokens + lane_index() / 4;
  if (token >= input.tokens || column >= input.columns) return {};
  return load_8(input.lane_row(group, token) + column * 2 + lane_index() % 4 * 8);
}

// Weights that are no quants: 32 columns of a tile.
template <Format kFormat, unsigned kGroups, typename Input>
GPU_FUNCTION void add_plain(const Input& input, const std::byte* stage, size_t column,
                            unsigned half, ProductSums<kGroups>& sums) {
  uint32_t a[kBlockPanels][2][Stage<kFormat>::kParts][4];
  GPU_UNROLL
  for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
    GPU_UNROLL
    for (unsigned step = 0; step < 2; ++step) {
      read_weights<kFormat>(stage, panel, 0, half * 2 + step, a[panel][step]);
    }
  }
  GPU_UNROLL
  for (unsigned group = 0; group < kGroups; ++group) {
    const Words4 x = read_wide(input, group, column);
    const uint32_t b[2][2] = {{x.words[0], x.words[1]}, {x.words[2], x.words[3]}};
    GPU_UNROLL
    for (unsigned part = 0; part < Stage<kFormat>::kParts; ++part) {
      GPU_UNROLL
      for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
        multiply_tile(sums.sums[panel][group], a[panel][0][part], b[0]);
        multiply_tile(sums.sums[panel][group], a[panel][1][part], b[1]);
      }
    }
  }
}

// sums[row][token] += scale of the row * products[row][token], of a panel and 8 tokens.
GPU_FUNCTION void add_scaled(float (&sums)[4], const float (&products)[4], float upper,
                             float lower) {
  sums[0] = multiply_add(products[0], upper, sums[0]);
  sums[1] = multiply_add(products[1], upper, sums[1]);
  sums[2] = multiply_add(products[2], lower, sums[2]);
  sums[3] = multiply_add(products[3], lower, sums[3]);
}

// Quants whose 32 columns share a scale: those of half `half` of tile `tile`.
template <Format kFormat, unsigned kGroups, typename Input>
GPU_FUNCTION void add_wide(const Input& input, const std::byte* stage, size_t column, unsigned tile,
                           unsigned half, ProductSums<kGroups>& sums) {
  constexpr uint32_t kOnes[4] = {0x3F803F80U, 0x3F803F80U, 0x3F803F80U, 0x3F803F80U};
  uint32_t a[kBlockPanels][2][1][4];
  Scale scales[kBlockPanels][2];
  GPU_UNROLL
  for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
    GPU_UNROLL
    for (unsigned step = 0; step < 2; ++step) {
      read_weights<kFormat>(stage, panel, tile, half * 2 + step, a[panel][step]);
      scales[panel][step] = read_scale<kFormat>(
          stage, panel * kGpuPanelRows + lane_index() / 4 + step * 8, tile * 2 + half);
    }
  }
  GPU_UNROLL
  for (unsigned group = 0; group < kGroups; ++group) {
    const Words4 x = read_wide(input, group, column);
    const uint32_t b[2][2] = {{x.words[0], x.words[1]}, {x.words[2], x.words[3]}};
    float inputs[4] = {};
    if constexpr (has_minimums(kFormat)) {
      multiply_tile(inputs, kOnes, b[0]);
      multiply_tile(inputs, kOnes, b[1]);
    }
    GPU_UNROLL
    for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
      float products[4] = {};
      multiply_tile(products, a[panel][0][0], b[0]);
      multiply_tile(products, a[panel][1][0], b[1]);
      add_scaled(sums.sums[panel][group], products, scales[panel][0].scale, scales[panel][1].scale);
      if constexpr (has_minimums(kFormat)) {
        add_scaled(sums.sums[panel][group], inputs, scales[panel][0].minimum,
                   scales[panel][1].minimum);
      }
    }
  }
}

// Quants whose 16 columns share a scale: those of step `step` of tile `tile`. `scales`: of the rows
// lane / 4 and 8 more of both panels.
template <Format kFormat, unsigned kGroups, typename Input>
GPU_FUNCTION void add_narrow(const Input& input, const std::byte* stage, size_t column,
                             unsigned tile, unsigned step, const Floats4 (&scales)[kBlockPanels][2],
                             ProductSums<kGroups>& sums) {
  uint32_t a[kBlockPanels][1][4];
  GPU_UNROLL
  for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
    read_weights<kFormat>(stage, panel, tile, step, a[panel]);
  }
  GPU_UNROLL
  for (unsigned group = 0; group < kGroups; ++group) {
    const Words2 x = read_narrow(input, group, column);
    GPU_UNROLL
    for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
      float products[4] = {};
      multiply_tile(products, a[panel][0], x.words);
      add_scaled(sums.sums[panel][group], products, scales[panel][0].values[step],
                 scales[panel][1].values[step]);
    }
  }
}

// F32 weights have no tile product: a lane computes its own elements of the sums.
template <unsigned kGroups, typename Input>
GPU_FUNCTION void add_f32(const Input& input, const std::byte* stage, size_t column,
                          ProductSums<kGroups>& sums) {
  for (unsigned four = 0; four < kGpuTileColumns; four += 4) {
    if (column + four >= input.columns) return;
    const size_t left = input.columns - column - four;
    GPU_UNROLL
    for (unsigned group = 0; group < kGroups; ++group) {
      GPU_UNROLL
      for (unsigned index = 0; index < 4; ++index) {
        const unsigned token = group * kGroupTokens + lane_index() % 4 * 2 + index % 2;
        if (token >= input.tokens) continue;
        const Words4 x = load_16(input.row(token) + (column + four) * sizeof(float));
        GPU_UNROLL
        for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
          const Words4 w = load_16(stage + panel * Stage<Format::kF32>::kQuantBytes +
                                   gpu_f32_byte(lane_index() / 4 + index / 2 * 8, four));
          float& sum = sums.sums[panel][group][index];
          GPU_UNROLL
          for (unsigned k = 0; k < 4; ++k) {
            const float value = k < left ? bits_to_float(x.words[k]) : 0.0F;
            sum = multiply_add(bits_to_float(w.words[k]), value, sum);
          }
        }
      }
    }
  }
}

// Loads that come after it are not begun before: of many tokens, the registers would not do.
template <unsigned kGroups>
GPU_FUNCTION void hold_loads() {
  if constexpr (kGroups >= 4) meet_warp();
}

template <Format kFormat, unsigned kGroups, typename Input>
GPU_FUNCTION void add_narrow_tile(const Input& input, const std::byte* stage, size_t column,
                                  unsigned tile, ProductSums<kGroups>& sums) {
  Floats4 scales[kBlockPanels][2];
  GPU_UNROLL
  for (unsigned row = 0; row < kBlockPanels * 2; ++row) {
    scales[row / 2][row % 2] = read_four_scales(stage, row * 8 + lane_index() / 4);
  }
  GPU_UNROLL
  for (unsigned step = 0; step < kGpuSteps; ++step) {
    if (step == kGpuSteps / 2) hold_loads<kGroups>();
    add_narrow<kFormat, kGroups>(input, stage, column + step * 16, tile, step, scales, sums);
  }
}

// Columns of a tile whose scales are ready.
template <Format kFormat, unsigned kGroups, typename Input>
GPU_FUNCTION void add_tile(const Input& input, const std::byte* stage, size_t column, unsigned tile,
                           ProductSums<kGroups>& sums) {
  if constexpr (gpu_layout(kFormat).scale_columns == 16) {
    add_narrow_tile<kFormat, kGroups>(input, stage, column, tile, sums);
  } else {
    GPU_UNROLL
    for (unsigned half = 0; half < 2; ++half) {
      if (half == 1) hold_loads<kGroups>();
      if constexpr (gpu_layout(kFormat).quant_bits == 16) {
        add_plain<kFormat, kGroups>(input, stage, column + half * 32, half, sums);
      } else {
        add_wide<kFormat, kGroups>(input, stage, column + half * 32, tile, half, sums);
      }
    }
  }
}

template <Format kFormat, unsigned kGroups, typename Input>
GPU_FUNCTION void add_unit(const Input& input, std::byte* stage, size_t unit,
                           ProductSums<kGroups>& sums) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  const size_t first = unit * kLayout.unit_columns();
  if constexpr (kFormat == Format::kF32) {
    add_f32<kGroups>(input, stage, first, sums);
  } else if constexpr (Stage<kFormat>::kUnpacks) {
    const RowScales<kFormat> own = read_row_scales<kFormat>(stage);
    GPU_KEEP_LOOP
    for (unsigned tile = 0; tile < kLayout.unit_tiles; ++tile) {
      meet_warp();  // what lies there has been read
      unpack_scales<kFormat>(own, tile, stage);
      meet_warp();
      add_tile<kFormat, kGroups>(input, stage, first + tile * kGpuTileColumns, tile, sums);
    }
  } else {
    static_assert(kLayout.unit_tiles == 1);
    add_tile<kFormat, kGroups>(input, stage, first, 0, sums);
  }
}

}  // namespace
}  // namespace lockstep
