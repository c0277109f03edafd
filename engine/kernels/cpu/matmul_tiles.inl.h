// The matrix product with activations of the form kBf16 through a matrix unit, once for all formats
// and units: the same bits as matmul_bf16.inl.h. Tokens are the rows of the first operand, read as
// they lie; weights are unpacked to the second, of 16 pairs of columns x 16 rows of a panel. Over
// all columns, sums stay in a tile or go to memory and back as they are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/matmul.inl.h"
#include "engine/kernels/cpu/tile_weights.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

constexpr size_t kUnitRows = 16;      // of a tile
constexpr size_t kUnitRowBytes = 64;  // 32 bf16, 16 pairs of them, or 16 sums
constexpr size_t kUnitTileBytes = kUnitRows * kUnitRowBytes;

// Prompts. Strips of 512 columns of two panels, 32 KiB, are multiplied by all tokens and stay in
// the nearest cache meanwhile. The activations' strip of all tokens (256 KiB) serves all panels of
// a group; it and the group's sums (512 KiB) stay in the second cache (2 MiB where there is AMX).
// From the third activations come at a fifth of the speed: with four panels a group and 512 tokens,
// a Granite Rapids multiplied at 1.25 TF/s a core what it does at 1.6 so (weights as bf16 already).
constexpr size_t kUnitPromptBlocks = 16;
constexpr size_t kUnitPanels = 2;
constexpr size_t kUnitGroupPanels = 32;
constexpr size_t kUnitChunkTokens = 256;

using UnitSums = float[kUnitRows][kPanelRows];  // [token][row of the panel]

// `blocks` of 32 columns from column `column` on; each has Weights::kParts second operands.
struct UnitStrip {
  size_t column;
  size_t blocks;
  size_t parts;

  size_t operands() const { return blocks * parts; }
  const std::byte* input(const MatmulArguments& arguments, size_t token, size_t operand) const {
    return arguments.input + token * arguments.input_stride_bytes +
           (column + operand / parts * kPairBlock) * sizeof(uint16_t);
  }
};

// Where Weights::unpack() puts pairs of columns: second operands, one after another.
[[gnu::always_inline]] inline auto store_into(std::byte (*operands)[kUnitTileBytes]) {
  return [operands] [[gnu::always_inline]] (size_t index, size_t pair, const auto& columns) {
    store_pairs(operands[index] + pair * kUnitRowBytes, columns);
  };
}

inline void store_unit_sums(const MatmulArguments& arguments, size_t panel, size_t token,
                            size_t count, const UnitSums& sums) {
  for (size_t t = 0; t < count; ++t) store_rows(arguments, panel, token + t, load(sums[t]));
}

// Prompts: a strip of each of the panels that are multiplied side by side, as second operands.
struct UnitPanels {
  alignas(64) std::byte operands[kUnitPanels][kUnitPromptBlocks][kUnitTileBytes];
};

// What is unpacked at once.
struct UnitStep {
  size_t group;  // the first panel of its group
  size_t panel;
  size_t panels;
  UnitStrip strip;
  bool first;  // of its panels' strips
  bool last;
};

// The steps of a product: group of panels after group, in each strip after strip, in that all
// panels of the group.
template <typename Weights>
class UnitWalk {
 public:
  explicit UnitWalk(const MatmulArguments& arguments)
      : end_(arguments.panel_end),
        blocks_((arguments.matrix.columns + kPairBlock - 1) / kPairBlock) {}

  UnitStep first(size_t panel) const { return at(panel, panel, 0); }
  bool is_over(const UnitStep& step) const { return step.panel >= end_; }
  UnitStep after(const UnitStep& step) const {
    const size_t panel = step.panel + step.panels;
    if (panel < group_end(step)) return at(step.group, panel, block_of(step));
    if (!step.last) return at(step.group, step.group, block_of(step) + step.strip.blocks);
    return at(panel, panel, 0);
  }

 private:
  static constexpr size_t kMostBlocks = kUnitPromptBlocks / Weights::kParts;

  static size_t smaller_of(size_t a, size_t b) { return a < b ? a : b; }
  static size_t block_of(const UnitStep& step) { return step.strip.column / kPairBlock; }
  size_t group_end(const UnitStep& step) const {
    return smaller_of(end_, step.group + kUnitGroupPanels);
  }
  // A step beyond the last panel has none.
  UnitStep at(size_t group, size_t panel, size_t block) const {
    const size_t blocks = smaller_of(blocks_ - block, kMostBlocks);
    return {.group = group,
            .panel = panel,
            .panels = smaller_of(end_ - panel, kUnitPanels),
            .strip = {block * kPairBlock, blocks, Weights::kParts},
            .first = block == 0,
            .last = block + blocks == blocks_};
  }

  size_t end_;
  size_t blocks_;
};

// Unpacks a step's weights bit by bit.
template <typename Weights>
class UnitUnpacking {
 public:
  UnitUnpacking(const MatmulArguments& arguments, const UnitStep& step, UnitPanels& out)
      : arguments_(arguments),
        step_(step),
        out_(out),
        units_((step.strip.blocks + Weights::kUnitBlocks - 1) / Weights::kUnitBlocks) {}

  // Brings it to `part` of `parts`.
  void advance(size_t part, size_t parts) {
    for (const size_t end = step_.panels * units_ * part / parts; done_ < end; ++done_) {
      const size_t panel = done_ / units_;
      const size_t block = done_ % units_ * Weights::kUnitBlocks;
      unpack(panel, block);
    }
  }

 private:
  [[gnu::noinline]] void unpack(size_t panel, size_t block) {
    const size_t begin = step_.strip.column / kPairBlock + block;
    Weights::unpack(arguments_.matrix, step_.panel + panel, begin, begin + Weights::kUnitBlocks,
                    store_into(out_.operands[panel] + block * Weights::kParts), [](size_t) {});
  }

  const MatmulArguments& arguments_;
  UnitStep step_;
  UnitPanels& out_;
  size_t units_;
  size_t done_ = 0;
};

// Sums that a tile begins with.
template <int kTile, typename Unit>
[[gnu::always_inline]] inline void begin_sums(Unit& unit, const UnitSums& sums, bool first) {
  if (first) {
    unit.template zero<kTile>();
  } else {
    unit.template load_once<kTile>(sums, kUnitRowBytes);
  }
}

// The product of a step's weights and `blocks` blocks of kTokenTiles tiles of tokens each, from
// `token` on; done(block) after each. Where `shape` has fewer rows than a tile, `blocks` is 1.
// Activations and sums come from the second cache and are not wanted again before the first is full
// of others: so they are loaded as such. While a tile's sums are stored, and the next block's take
// their place, the others are still being multiplied.
template <size_t kTokenTiles, size_t kPanels, size_t kParts, typename Unit, typename Done>
[[gnu::always_inline]] inline void multiply_blocks(const MatmulArguments& arguments, Unit& unit,
                                                   const UnitStep& step, const UnitPanels& weights,
                                                   size_t token, size_t blocks,
                                                   UnitSums (*sums)[kUnitPanels], Done done) {
  constexpr bool kSecondPanel = kPanels > 1;
  constexpr bool kSecondTile = kTokenTiles > 1;
  const size_t stride = arguments.input_stride_bytes;
  const std::byte* inputs = step.strip.input(arguments, token, 0);
  const size_t operands = step.strip.blocks * kParts;
  begin_sums<0>(unit, sums[0][0], step.first);
  if constexpr (kSecondPanel) begin_sums<1>(unit, sums[0][1], step.first);
  if constexpr (kSecondTile) begin_sums<2>(unit, sums[1][0], step.first);
  if constexpr (kSecondTile && kSecondPanel) begin_sums<3>(unit, sums[1][1], step.first);
  for (size_t block = 0; block < blocks; ++block) {
    for (size_t operand = 0; operand < operands; ++operand) {
      const std::byte* input = inputs + operand / kParts * kUnitRowBytes;
      unit.template load_once<4>(input, stride);
      unit.template load<6>(weights.operands[0][operand], kUnitRowBytes);
      unit.template multiply<0, 4, 6>();
      if constexpr (kSecondPanel) {
        unit.template load<7>(weights.operands[1][operand], kUnitRowBytes);
        unit.template multiply<1, 4, 7>();
      }
      if constexpr (kSecondTile) {
        unit.template load_once<5>(input + kUnitRows * stride, stride);
        unit.template multiply<2, 5, 6>();
        if constexpr (kSecondPanel) unit.template multiply<3, 5, 7>();
      }
    }
    inputs += kTokenTiles * kUnitRows * stride;
    UnitSums(*next)[kUnitPanels] = sums + kTokenTiles;
    const bool more = block + 1 < blocks;
    unit.template store<0>(sums[0][0], kUnitRowBytes);
    if (more) begin_sums<0>(unit, next[0][0], step.first);
    if constexpr (kSecondPanel) {
      unit.template store<1>(sums[0][1], kUnitRowBytes);
      if (more) begin_sums<1>(unit, next[0][1], step.first);
    }
    if constexpr (kSecondTile) {
      unit.template store<2>(sums[1][0], kUnitRowBytes);
      if (more) begin_sums<2>(unit, next[1][0], step.first);
    }
    if constexpr (kSecondTile && kSecondPanel) {
      unit.template store<3>(sums[1][1], kUnitRowBytes);
      if (more) begin_sums<3>(unit, next[1][1], step.first);
    }
    done(block);
    sums = next;
  }
}

// y of `count` tokens from `token` on from their finished sums.
[[gnu::noinline]] inline void store_sums(const MatmulArguments& arguments, const UnitStep& step,
                                         size_t token, size_t count,
                                         const UnitSums (*sums)[kUnitPanels]) {
  for (size_t t = 0; t < count; t += kUnitRows) {
    const size_t rows = count - t < kUnitRows ? count - t : kUnitRows;
    for (size_t panel = 0; panel < step.panels; ++panel) {
      store_unit_sums(arguments, step.panel + panel, token + t, rows, sums[t / kUnitRows][panel]);
    }
  }
}

struct UnitScratch {
  UnitPanels weights[2];
  // Of a group: [pair of panels][tile of tokens][panel].
  alignas(
      64) UnitSums sums[kUnitGroupPanels / kUnitPanels][kUnitChunkTokens / kUnitRows][kUnitPanels];
};

// The product of a step's weights, all unpacked, and `count` tokens from `token` on; unpacks the
// next step's between the tiles.
template <typename Weights, typename Unit, size_t kPanels>
[[gnu::noinline]] void multiply_step(const MatmulArguments& arguments, Unit& unit,
                                     const UnitStep& step, const UnitPanels& weights, size_t token,
                                     size_t count, UnitSums (*sums)[kUnitPanels],
                                     UnitUnpacking<Weights>& next) {
  constexpr size_t kBlockTokens = 2 * kUnitRows;
  const size_t blocks = count / kBlockTokens;
  const size_t parts = (count + kBlockTokens - 1) / kBlockTokens;
  const auto done = [&](size_t block) {
    if (step.last) {
      const size_t from = block * kBlockTokens;
      store_sums(arguments, step, token + from,
                 count - from < kBlockTokens ? count - from : kBlockTokens, sums + 2 * block);
    }
    next.advance(block + 1, parts);
  };
  if (blocks > 0) {
    unit.shape(kUnitRows, kUnitRows);
    multiply_blocks<2, kPanels, Weights::kParts>(arguments, unit, step, weights, token, blocks,
                                                 sums, done);
  }
  const size_t left = count % kBlockTokens;
  if (left == 0) return;
  const auto multiply_left = [&]<size_t kTokenTiles> {
    multiply_blocks<kTokenTiles, kPanels, Weights::kParts>(
        arguments, unit, step, weights, token + blocks * kBlockTokens, 1, sums + 2 * blocks,
        [&](size_t) { done(blocks); });
  };
  if (left > kUnitRows) {
    unit.shape(kUnitRows, left - kUnitRows);
    multiply_left.template operator()<2>();
  } else {
    unit.shape(left, left);
    multiply_left.template operator()<1>();
  }
}

template <typename Weights, typename Unit>
inline void multiply_prompt(const MatmulArguments& arguments) {
  const UnitWalk<Weights> walk(arguments);
  UnitScratch scratch;
  Unit unit;
  for (size_t token = 0; token < arguments.token_count; token += kUnitChunkTokens) {
    const size_t left = arguments.token_count - token;
    const size_t count = left < kUnitChunkTokens ? left : kUnitChunkTokens;
    UnitStep step = walk.first(arguments.panel_begin);
    if (walk.is_over(step)) return;
    size_t buffer = 0;
    UnitUnpacking<Weights>(arguments, step, scratch.weights[buffer]).advance(1, 1);
    while (!walk.is_over(step)) {
      const UnitStep following = walk.after(step);
      UnitUnpacking<Weights> next(arguments, following, scratch.weights[buffer ^ 1U]);
      UnitSums(*sums)[kUnitPanels] = scratch.sums[(step.panel - step.group) / kUnitPanels];
      const auto multiply = step.panels == kUnitPanels ? multiply_step<Weights, Unit, 2>
                                                       : multiply_step<Weights, Unit, 1>;
      multiply(arguments, unit, step, scratch.weights[buffer], token, count, sums, next);
      step = following;
      buffer ^= 1U;
    }
  }
}

}  // namespace
}  // namespace lockstep
