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
  uint32_t taker[4];  // begin_sums(): the A operand of add_inputs()
};

// The byte in a row of bf16 at which a lane begins to read: it has 8 columns of 32, or 4 of 16.
template <Format kFormat>
GPU_FUNCTION unsigned lane_row_byte() {
  return lane_index() % 4 * (gpu_layout(kFormat).scale_columns / 4) * sizeof(uint16_t);
}

// Reads the lane's part of a group's tokens from column `column` on: 8 columns of bf16 of 32, half
// `half` of a tile, or 4 of 16, its step `step`. `tile`: of the unit.
template <typename Input>
GPU_FUNCTION Words4 read_wide(Input& input, unsigned group, size_t column, unsigned /*tile*/,
                              unsigned /*half*/) {
  return load_16(input.lane_row(group) + column * sizeof(uint16_t));
}
template <typename Input>
GPU_FUNCTION Words2 read_narrow(Input& input, unsigned group, size_t column, unsigned /*tile*/,
                                unsigned /*step*/) {
  return load_8(input.lane_row(group) + column * sizeof(uint16_t));
}

// The A operands of both panels for half `half` of tile `tile`: 32 columns, two steps.
template <Format kFormat>
GPU_FUNCTION void read_half(const std::byte* stage, unsigned tile, unsigned half,
                            uint32_t (&a)[kBlockPanels][2][Stage<kFormat>::kParts][4]) {
  GPU_UNROLL
  for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
    GPU_UNROLL
    for (unsigned step = 0; step < 2; ++step) {
      read_weights<kFormat>(stage, panel, tile, half * 2 + step, a[panel][step]);
    }
  }
}

// Weights that are no quants: 32 columns of a tile.
template <Format kFormat, unsigned kGroups, typename Input>
GPU_FUNCTION void add_plain(Input& input, const std::byte* stage, size_t column, unsigned half,
                            ProductSums<kGroups>& sums) {
  uint32_t a[kBlockPanels][2][Stage<kFormat>::kParts][4];
  read_half<kFormat>(stage, 0, half, a);
  GPU_UNROLL
  for (unsigned group = 0; group < kGroups; ++group) {
    const Words4 x = read_wide(input, group, column, /*tile=*/0, half);
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

// Ones; without minimums -quant_bias().
template <Format kFormat, unsigned kGroups>
GPU_FUNCTION void begin_sums(ProductSums<kGroups>& sums) {
  constexpr uint32_t kOnes = 0x3F803F80U;
  GPU_UNROLL
  for (uint32_t& word : sums.taker) {
    word = has_minimums(kFormat) ? kOnes : kBiasTaken<kFormat>;
    // As a constant it would be made anew for every tile product. With minimums there are no
    // registers to keep it in.
    if constexpr (kIsBiased<kFormat> && !has_minimums(kFormat)) word = from_lane(word, 0);
  }
}

// The sum of the x of 16 columns, for all rows; without minimums -quant_bias() times it.
template <unsigned kGroups>
GPU_FUNCTION void add_inputs(const ProductSums<kGroups>& of, const uint32_t (&b)[2],
                             float (&sums)[4]) {
  multiply_tile(sums, of.taker, b);
}

// The scales of a tile that a lane multiplies with: of the rows lane / 4 and 8 more of both panels.
using TileScales = TwoScales[kBlockPanels][2];

template <Format kFormat>
GPU_FUNCTION void read_tile_scales(const std::byte* stage, unsigned tile, TileScales& scales) {
  GPU_UNROLL
  for (unsigned row = 0; row < kBlockPanels * 2; ++row) {
    scales[row / 2][row % 2] = read_two_scales<kFormat>(stage, row * 8 + lane_index() / 4, tile);
  }
}

// Quants whose 32 columns share a scale: those of half `half` of tile `tile`.
template <Format kFormat, unsigned kGroups, typename Input>
GPU_FUNCTION void add_wide(Input& input, const std::byte* stage, size_t column, unsigned tile,
                           unsigned half, const TileScales& scales, ProductSums<kGroups>& sums) {
  uint32_t a[kBlockPanels][2][1][4];
  read_half<kFormat>(stage, tile, half, a);
  GPU_UNROLL
  for (unsigned group = 0; group < kGroups; ++group) {
    const Words4 x = read_wide(input, group, column, tile, half);
    const uint32_t b[2][2] = {{x.words[0], x.words[1]}, {x.words[2], x.words[3]}};
    float inputs[4] = {};  // the sum of the x, or what the products begin at
    if constexpr (kIsBiased<kFormat>) {
      add_inputs(sums, b[0], inputs);
      add_inputs(sums, b[1], inputs);
    }
    if constexpr (Input::kIsStaged) {
      // Both panels' tile products in turns: each waits for the one before it of its own.
      float both[kBlockPanels][4] = {};
      GPU_UNROLL
      for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
        if constexpr (kIsBiased<kFormat> && !has_minimums(kFormat)) {
          multiply_tile_from(inputs, a[panel][0][0], b[0], both[panel]);
        } else {
          multiply_tile(both[panel], a[panel][0][0], b[0]);
        }
      }
      GPU_UNROLL
      for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
        multiply_tile(both[panel], a[panel][1][0], b[1]);
      }
      GPU_UNROLL
      for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
        const Scale& upper = scales[panel][0].halves[half];
        const Scale& lower = scales[panel][1].halves[half];
        add_scaled(sums.sums[panel][group], both[panel], upper.scale, lower.scale);
        if constexpr (has_minimums(kFormat)) {
          add_scaled(sums.sums[panel][group], inputs, upper.minimum, lower.minimum);
        }
      }
    } else {
      GPU_UNROLL
      for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
        float products[4] = {};
        if constexpr (kIsBiased<kFormat> && !has_minimums(kFormat)) {
          multiply_tile_from(inputs, a[panel][0][0], b[0], products);
        } else {
          multiply_tile(products, a[panel][0][0], b[0]);
        }
        multiply_tile(products, a[panel][1][0], b[1]);
        const Scale& upper = scales[panel][0].halves[half];
        const Scale& lower = scales[panel][1].halves[half];
        add_scaled(sums.sums[panel][group], products, upper.scale, lower.scale);
        if constexpr (has_minimums(kFormat)) {
          add_scaled(sums.sums[panel][group], inputs, upper.minimum, lower.minimum);
        }
      }
    }
  }
}

// Quants whose 16 columns share a scale: those of step `step` of tile `tile`.
template <Format kFormat, unsigned kGroups, typename Input>
GPU_FUNCTION void add_narrow(Input& input, const std::byte* stage, size_t column, unsigned tile,
                             unsigned step, const StepScales& scales, ProductSums<kGroups>& sums) {
  static_assert(kIsBiased<kFormat>);
  uint32_t a[kBlockPanels][1][4];
  GPU_UNROLL
  for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
    read_weights<kFormat>(stage, panel, tile, step, a[panel]);
  }
  GPU_UNROLL
  for (unsigned group = 0; group < kGroups; ++group) {
    const Words2 x = read_narrow(input, group, column, tile, step);
    float inputs[4] = {};
    add_inputs(sums, x.words, inputs);
    GPU_UNROLL
    for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
      const Scale& upper = scales[panel][0];
      const Scale& lower = scales[panel][1];
      float products[4] = {};
      if constexpr (has_minimums(kFormat)) {
        multiply_tile(products, a[panel][0], x.words);
      } else {
        multiply_tile_from(inputs, a[panel][0], x.words, products);
      }
      add_scaled(sums.sums[panel][group], products, upper.scale, lower.scale);
      if constexpr (has_minimums(kFormat)) {
        add_scaled(sums.sums[panel][group], inputs, upper.minimum, lower.minimum);
      }
    }
  }
}

// F32 weights have no tile product: a lane computes its own elements of the sums.
template <unsigned kGroups, typename Input>
GPU_FUNCTION void add_f32(Input& input, const std::byte* stage, size_t column,
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
  if constexpr (kGroups >= 2) meet_warp();
}

template <Format kFormat, unsigned kGroups, typename Input>
GPU_FUNCTION void add_narrow_tile(Input& input, const std::byte* stage, size_t column,
                                  unsigned tile, ProductSums<kGroups>& sums) {
  constexpr unsigned kSteps = kNarrowSteps<kFormat>;
  NarrowScales<kFormat> scales;
  GPU_UNROLL
  for (unsigned step = 0; step < kGpuSteps; ++step) {
    if (step == kGpuSteps / 2) hold_loads<kGroups>();
    if (step % kSteps == 0) read_narrow_scales<kFormat>(stage, step, scales);
    add_narrow<kFormat, kGroups>(input, stage, column + step * 16, tile, step,
                                 scales[step % kSteps], sums);
  }
}

// Columns of a tile whose scales are ready. `kWhole`: all of them are columns of the matrix. Else
// halves that begin behind the last are left out: their scales, or weights, are zeros, and of
// activations there are none.
template <Format kFormat, unsigned kGroups, bool kWhole, typename Input>
GPU_FUNCTION void add_tile(Input& input, const std::byte* stage, size_t column, unsigned tile,
                           ProductSums<kGroups>& sums) {
  if constexpr (gpu_layout(kFormat).scale_columns == 16) {
    add_narrow_tile<kFormat, kGroups>(input, stage, column, tile, sums);
  } else if constexpr (gpu_layout(kFormat).quant_bits == 16) {
    GPU_UNROLL
    for (unsigned half = 0; half < 2; ++half) {
      if (!kWhole && column + half * 32 >= input.columns) return;
      if (half == 1) hold_loads<kGroups>();
      add_plain<kFormat, kGroups>(input, stage, column + half * 32, half, sums);
    }
  } else {
    TileScales scales;
    read_tile_scales<kFormat>(stage, tile, scales);
    GPU_UNROLL
    for (unsigned half = 0; half < 2; ++half) {
      if (!kWhole && column + half * 32 >= input.columns) return;
      if (half == 1) hold_loads<kGroups>();
      // With many tokens the registers would not do for both halves' at once.
      if (half == 1 && kGroups >= 2) read_tile_scales<kFormat>(stage, tile, scales);
      add_wide<kFormat, kGroups>(input, stage, column + half * 32, tile, half, scales, sums);
    }
  }
}

// With many tokens a tile is long enough, and minimums leave no registers for more.
template <Format kFormat, unsigned kGroups>
constexpr unsigned kTilesAtOnce = kGroups >= 2 || has_minimums(kFormat)
                                      ? 1
                                      : gpu_layout(kFormat).unit_tiles;

template <Format kFormat, unsigned kGroups, typename Input>
GPU_FUNCTION void add_unit(Input& input, std::byte* stage, unsigned unit,
                           ProductSums<kGroups>& sums) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  constexpr unsigned kColumns = kLayout.unit_columns();
  const size_t first = unit * kColumns;
  if constexpr (kFormat == Format::kF32) {
    add_f32<kGroups>(input, stage, first, sums);
  } else if constexpr (Stage<kFormat>::kUnpacks) {
    const RowScales<kFormat> own = read_row_scales<kFormat>(stage);
    GPU_KEEP_LOOP
    for (unsigned tile = 0; tile < kLayout.unit_tiles; ++tile) {
      meet_warp();  // what lies there has been read
      unpack_scales<kFormat>(own, tile, stage);
      meet_warp();
      add_tile<kFormat, kGroups, /*kWhole=*/true>(input, stage, first + tile * kGpuTileColumns,
                                                  tile, sums);
    }
  } else if ((unit + 1) * kColumns <= input.columns) {
    GPU_UNROLL_BY((kTilesAtOnce<kFormat, kGroups>))
    for (unsigned tile = 0; tile < kLayout.unit_tiles; ++tile) {
      add_tile<kFormat, kGroups, /*kWhole=*/true>(input, stage, first + tile * kGpuTileColumns,
                                                  tile, sums);
    }
  } else {
    GPU_KEEP_LOOP
    for (unsigned tile = 0; tile < kLayout.unit_tiles; ++tile) {
      add_tile<kFormat, kGroups, /*kWhole=*/false>(input, stage, first + tile * kGpuTileColumns,
                                                   tile, sums);
    }
  }
}

}  // namespace
}  // namespace lockstep
