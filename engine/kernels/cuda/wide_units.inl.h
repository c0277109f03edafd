// The sums of a warp's 16 rows over units of columns by Hopper's products of warp groups
// (gpu_code.h), which take weights from registers and all of the block's tokens from shared memory:
// a weight is made bf16 once for up to 64 tokens, and no warp reads activations itself. Two warps
// have the 32 rows of a BlockPlace. Included by many_product.inl.h.
//
// The arithmetic of an element is that of product_units.inl.h, operation by operation; what takes
// the bias away is computed anew by every warp, which costs less than to read it. The activations
// of the next unit are put in their places while the products of this one go on: a warp reads its
// part of them a tile before it leaves it there.
#pragma once

#include "engine/kernels/cuda/many_units.inl.h"
#include "engine/kernels/cuda/product_place.inl.h"

namespace lockstep {
namespace {

constexpr unsigned kWideBytesMax = 227 * 1024;  // Hopper's
constexpr unsigned kWideStagesMax = 6;

// A unit's activations in shared memory: for every 8 columns of tile products the tokens' 16 bytes.
template <Format kFormat, unsigned kGroups>
struct WideInputs {
  static constexpr GpuLayout kLayout = gpu_layout(kFormat);
  static constexpr unsigned kTokens = kGroups * kGroupTokens;
  static constexpr unsigned kEightBytes = kTokens * 16;
  static constexpr unsigned kStepBytes = 2 * kEightBytes;
  static constexpr unsigned kTileBytes = kGpuSteps * kStepBytes;
  static constexpr unsigned kBytes = kLayout.unit_tiles * kTileBytes;
};

// A block's shared memory: the norm's factors, the activations of two units, stages of weights (a
// pair of warps has some, each warp its panel of them), and the sums of each pair's 32 rows.
template <Format kFormat, unsigned kGroups>
struct WideShared {
  static constexpr bool kIsWide = true;
  static constexpr unsigned kTokens = kGroups * kGroupTokens;
  static constexpr unsigned kInputBytes = WideInputs<kFormat, kGroups>::kBytes;
  static constexpr unsigned kInputs = kTokens * sizeof(float);
  static constexpr unsigned kWeights = kInputs + 2 * kInputBytes;
  static constexpr unsigned kSumBytes = kTokens * kSumsStride * sizeof(float);
  static constexpr unsigned kLeft = kWideBytesMax - kWeights;
  // A multiprocessor takes 16 warps, of which each has 128 registers.
  static constexpr unsigned kBlocks = kLeft / 8 >= kSumBytes + 2 * Stage<kFormat>::kBytes ? 8 : 4;
  static constexpr unsigned kBlockWarps = 2;
  static constexpr unsigned kWarps = kBlocks * kBlockWarps;
  static constexpr unsigned kFit = (kLeft / kBlocks - kSumBytes) / Stage<kFormat>::kBytes;
  static constexpr unsigned kStages = kFit > kWideStagesMax ? kWideStagesMax : kFit;
  static constexpr unsigned kStageBytes = kStages * Stage<kFormat>::kBytes;  // of a pair
  static constexpr unsigned kPieces = divide_up(2 * kGroups, kWarps);
  static constexpr bool kAllPieces = 2 * kGroups % kWarps == 0;  // each warp has as many
  static_assert(kFit >= 2 && kInputs % 16 == 0);

  static constexpr size_t bytes(unsigned blocks) {
    return kWeights + size_t{blocks} * (kStageBytes + kSumBytes);
  }
};

// The block's warps share out a tile's activations in pieces of 32 columns and 8 tokens; a lane has
// 16 bytes of each.
struct WidePiece {
  const std::byte* row;  // what the lane reads of the first unit
  unsigned columns;      // behind it, with the zeros that follow; 0: the warp has no such piece
  unsigned byte;         // where the lane leaves it
};

template <Format kFormat, unsigned kGroups>
using WidePieces = WidePiece[WideShared<kFormat, kGroups>::kPieces];
template <Format kFormat, unsigned kGroups>
using WideHeld = Words4[WideShared<kFormat, kGroups>::kPieces];

// A token that is not there has the last one's row. Activations lie in the order of columns in
// which lanes hold weights (gpu_tile_column()).
template <Format kFormat, unsigned kGroups>
GPU_FUNCTION void find_wide_pieces(const GpuProduct& product, size_t columns, size_t first,
                                   unsigned tokens, WidePieces<kFormat, kGroups>& pieces) {
  using I = WideInputs<kFormat, kGroups>;
  const unsigned place = lane_index() % 4;
  GPU_UNROLL
  for (unsigned index = 0; index < WideShared<kFormat, kGroups>::kPieces; ++index) {
    const unsigned number = index * WideShared<kFormat, kGroups>::kWarps + warp_index();
    const unsigned half = number % 2;
    const unsigned token = number / 2 * kGroupTokens + lane_index() / 4;
    const size_t row = first + (token < tokens ? token : tokens - 1);
    pieces[index].row = product.input + row * product.input_stride_bytes + half * 64 + place * 16;
    const auto readable = static_cast<unsigned>(round_up<size_t>(columns, 32));
    const bool is_piece = number / 2 < kGroups && readable > half * 32;
    pieces[index].columns = is_piece ? readable - half * 32 : 0;
    pieces[index].byte = half * (2 * I::kStepBytes) + token * 16 + place * 4;
  }
}

// The lane's part of tile `tile` of unit `unit`.
template <Format kFormat, unsigned kGroups>
GPU_FUNCTION void load_wide_inputs(const WidePieces<kFormat, kGroups>& pieces, unsigned unit,
                                   unsigned tile, WideHeld<kFormat, kGroups>& held) {
  const unsigned column = unit * gpu_layout(kFormat).unit_columns() + tile * kGpuTileColumns;
  GPU_UNROLL
  for (unsigned index = 0; index < WideShared<kFormat, kGroups>::kPieces; ++index) {
    if (column >= pieces[index].columns) continue;
    held[index] = load_16(pieces[index].row + size_t{column} * sizeof(uint16_t));
  }
}

template <Format kFormat, unsigned kGroups>
GPU_FUNCTION void store_wide_inputs(const WidePieces<kFormat, kGroups>& pieces, std::byte* inputs,
                                    unsigned tile, const WideHeld<kFormat, kGroups>& held) {
  using I = WideInputs<kFormat, kGroups>;
  GPU_UNROLL
  for (unsigned index = 0; index < WideShared<kFormat, kGroups>::kPieces; ++index) {
    if (!WideShared<kFormat, kGroups>::kAllPieces && pieces[index].columns == 0) continue;
    std::byte* const own = inputs + tile * I::kTileBytes + pieces[index].byte;
    GPU_UNROLL
    for (unsigned word = 0; word < 4; ++word) {
      *reinterpret_cast<uint32_t*>(own + word * I::kEightBytes) = held[index].words[word];
    }
  }
}

// A warp's panel of a unit's weights, of which its pair has both.
struct WideWeights {
  unsigned panel;
  const std::byte* quants;
  const std::byte* high;
  const std::byte* scales;  // of row lane_index() of the 32
  bool has_row;             // whether that is a row of the panel
};
GPU_FUNCTION WideWeights wide_weights(const BlockWeights& both) {
  const unsigned panel = warp_index() % kBlockPanels;
  return {panel, panel == 0 ? both.quants[0] : both.quants[1],
          panel == 0 ? both.high[0] : both.high[1], both.scales,
          lane_index() / kGpuPanelRows == panel};
}

template <Format kFormat>
GPU_FUNCTION void begin_wide_weights(const WideWeights& weights, unsigned unit, std::byte* stage) {
  using S = Stage<kFormat>;
  const unsigned lane = lane_index();
  const std::byte* const quants = weights.quants + size_t{unit} * S::kQuantBytes;
  GPU_UNROLL
  for (unsigned piece = 0; piece < S::kQuantBytes; piece += 512) {
    begin_copy_16(stage + weights.panel * S::kQuantBytes + piece + lane * 16, quants + piece);
  }
  if constexpr (S::kHighBytes > 0) {
    constexpr unsigned kLaneBytes = S::kLayout.high_lane_bytes();
    begin_copy<kLaneBytes>(stage + S::kHigh + weights.panel * S::kHighBytes + lane * kLaneBytes,
                           weights.high + size_t{unit} * S::kHighBytes);
  }
  if (!weights.has_row) return;
  constexpr unsigned kScaleBytes = S::kLayout.scale_bytes;
  if constexpr (kScaleBytes > 0) {
    begin_copy<kScaleBytes>(stage + S::kScales + lane * kScaleBytes,
                            weights.scales + size_t{unit} * (kGpuPanelRows * kScaleBytes));
  }
}

// The sums of a panel.
template <unsigned kGroups>
using PanelSums = float[kGroups][4];

template <unsigned kGroups>
GPU_FUNCTION void add_scaled_panel(PanelSums<kGroups>& sums, const PanelSums<kGroups>& products,
                                   float upper, float lower) {
  GPU_UNROLL
  for (unsigned group = 0; group < kGroups; ++group) {
    add_scaled(sums[group], products[group], upper, lower);
  }
}

// The A operand whose product takes the bias away, or, with minimums, is the sum of x: a bf16 in
// all places. As constants its words would be made anew for every product.
using WideTaker = uint32_t[4];
template <Format kFormat>
GPU_FUNCTION void make_wide_taker(WideTaker& taker) {
  constexpr uint32_t kOnes = 0x3F803F80U;
  GPU_UNROLL
  for (unsigned word = 0; word < 4; ++word) {
    taker[word] = 0;
    if constexpr (kIsBiased<kFormat>) {
      const uint32_t own = has_minimums(kFormat) ? kOnes : kBiasTaken<kFormat>;
      taker[word] = from_lane(lane_index() == word ? own : 0, word);
    }
  }
}

// Products of kSteps steps, one after the other, each with its operand, or all with one.
// Without kAdds the first one's sum begins at 0.
template <Format kFormat, unsigned kGroups, unsigned kSteps, bool kAdds, unsigned kOperands>
GPU_FUNCTION void multiply_wide_steps(PanelSums<kGroups>& sums, const uint32_t (&a)[kOperands][4],
                                      GroupMatrix inputs) {
  static_assert(kOperands == kSteps || kOperands == 1);
  multiply_group_tile<kGroups, kAdds>(sums, a[0], inputs);
  GPU_UNROLL
  for (unsigned step = 1; step < kSteps; ++step) {
    multiply_group_tile<kGroups, true>(
        sums, a[kOperands == 1 ? 0 : step],
        group_matrix_behind(inputs, step * WideInputs<kFormat, kGroups>::kStepBytes));
  }
}

// Quants whose kSteps * 16 columns share a scale; `scales`: of the rows lane / 4 and 8 more. `work`
// is done while products go on.
template <Format kFormat, unsigned kGroups, unsigned kSteps, typename Work>
GPU_FUNCTION void add_wide_products(GroupMatrix inputs, const std::byte* stage, unsigned panel,
                                    unsigned tile, unsigned step, const Scale (&scales)[2],
                                    const WideTaker (&taker)[1], PanelSums<kGroups>& sums,
                                    const Work& work) {
  using I = WideInputs<kFormat, kGroups>;
  constexpr bool kMinimums = has_minimums(kFormat);
  constexpr bool kTakes = kIsBiased<kFormat> && !kMinimums;
  inputs = group_matrix_behind(inputs, tile * I::kTileBytes + step * I::kStepBytes);
  uint32_t weights[kSteps][4];
  GPU_UNROLL
  for (unsigned index = 0; index < kSteps; ++index) {
    uint32_t a[1][4];
    read_weights<kFormat>(stage, panel, tile, step + index, a);
    GPU_UNROLL
    for (unsigned word = 0; word < 4; ++word) {
      weights[index][word] = a[0][word];
    }
  }
  float products[kGroups][4];
  begin_group_products();
  if constexpr (kTakes) {
    multiply_wide_steps<kFormat, kGroups, kSteps, false>(products, taker, inputs);
  }
  multiply_wide_steps<kFormat, kGroups, kSteps, kTakes>(products, weights, inputs);
  close_group_products();
  work();
  wait_for_group_products<0>(products);
  add_scaled_panel<kGroups>(sums, products, scales[0].scale, scales[1].scale);
  if constexpr (kMinimums) {
    // The sums of x, alike for all rows.
    float of_inputs[kGroups][4];
    begin_group_products();
    multiply_wide_steps<kFormat, kGroups, kSteps, false>(of_inputs, taker, inputs);
    close_group_products();
    wait_for_group_products<0>(of_inputs);
    add_scaled_panel<kGroups>(sums, of_inputs, scales[0].minimum, scales[1].minimum);
  }
}

// Weights that are no quants: half `half` of the unit's tile.
template <Format kFormat, unsigned kGroups, typename Work>
GPU_FUNCTION void add_wide_plain(GroupMatrix inputs, const std::byte* stage, unsigned panel,
                                 unsigned half, PanelSums<kGroups>& sums, const Work& work) {
  constexpr unsigned kParts = Stage<kFormat>::kParts;
  inputs = group_matrix_behind(inputs, half * 2 * WideInputs<kFormat, kGroups>::kStepBytes);
  uint32_t weights[kParts][2][4];
  GPU_UNROLL
  for (unsigned step = 0; step < 2; ++step) {
    uint32_t a[kParts][4];
    read_weights<kFormat>(stage, panel, 0, half * 2 + step, a);
    GPU_UNROLL
    for (unsigned word = 0; word < kParts * 4; ++word) {
      weights[word / 4][step][word % 4] = a[word / 4][word % 4];
    }
  }
  begin_group_products();
  GPU_UNROLL
  for (unsigned part = 0; part < kParts; ++part) {
    multiply_wide_steps<kFormat, kGroups, 2, true>(sums, weights[part], inputs);
  }
  close_group_products();
  work();
  wait_for_group_products<0>(sums);
}

// Tile `tile` of a unit, of whose columns there are `columns`. `work` is done once, meanwhile.
template <Format kFormat, unsigned kGroups, typename Work>
GPU_FUNCTION void add_wide_tile(GroupMatrix inputs, const std::byte* stage, unsigned panel,
                                unsigned tile, unsigned columns, const WideTaker (&taker)[1],
                                PanelSums<kGroups>& sums, const Work& work) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  constexpr unsigned kSteps = 2;  // 32 columns, which share a scale
  static_assert(kLayout.scale_columns == 32);
  const unsigned row = panel * kGpuPanelRows + lane_index() / 4;
  GPU_UNROLL
  for (unsigned step = 0; step < kGpuSteps; step += kSteps) {
    const bool is_first = step == 0;
    if (tile * kGpuTileColumns + step * 16 >= columns) {
      if (is_first) work();
      return;
    }
    const auto meanwhile = [&] {
      if (is_first) work();
    };
    if constexpr (kLayout.quant_bits == 16) {
      add_wide_plain<kFormat, kGroups>(inputs, stage, panel, step / 2, sums, meanwhile);
    } else {
      Scale scales[2];
      GPU_UNROLL
      for (unsigned index = 0; index < 2; ++index) {
        scales[index] = read_two_scales<kFormat>(stage, row + index * 8, tile).halves[step / 2];
      }
      add_wide_products<kFormat, kGroups, kSteps>(inputs, stage, panel, tile, step, scales, taker,
                                                  sums, meanwhile);
    }
  }
}

}  // namespace
}  // namespace lockstep
