// The matrix product with activations of the form kBf16 through a matrix unit, once for all formats
// and units: the same bits as matmul_bf16.inl.h. Tokens are the rows of the first operand, read as
// they lie; weights are unpacked to the second, of 16 pairs of columns x 16 rows of a panel. Over
// all columns, sums stay in a tile or go to memory and back as they are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/activations.inl.h"
#include "engine/kernels/cpu/denormals.h"
#include "engine/kernels/cpu/matmul.inl.h"
#include "engine/kernels/cpu/matmul_bf16.inl.h"
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
// Into how many parts the unpacking of an operand is cut, between which others are multiplied: the
// processor overlaps the two only as far as it looks ahead. With 1B in Q4_0 and 512 tokens, two
// cores of a Granite Rapids compute 1,010 tokens/s where a block of tokens is multiplied between
// parts, 1,100 with 4 parts an operand, 1,065 with 8.
constexpr size_t kUnitTurns = 4;

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

// The place for Weights::unpack() to put pairs of columns: second operands, one after another.
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

// The panels that are unpacked at once: the same ones of each of a product's matrices.
struct UnitStep {
  size_t group;  // the first panel of its group
  size_t panel;
  size_t panels;
  UnitStrip strip;
  bool first;  // of its panels' strips
  bool last;
};

// The steps of a product of kMatrices matrices: group of panels after group, in each strip after
// strip, in that all panels of the group.
template <typename Weights, size_t kMatrices>
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
    return smaller_of(end_, step.group + kUnitGroupPanels / kMatrices);
  }
  // A step beyond the last panel has none.
  UnitStep at(size_t group, size_t panel, size_t block) const {
    const size_t blocks = smaller_of(blocks_ - block, kMostBlocks);
    return {.group = group,
            .panel = panel,
            .panels = smaller_of(end_ - panel, kUnitPanels / kMatrices),
            .strip = {block * kPairBlock, blocks, Weights::kParts},
            .first = block == 0,
            .last = block + blocks == blocks_};
  }

  size_t end_;
  size_t blocks_;
};

// Blocks of tokens from `first` on.
struct UnitTokens {
  size_t first;
  size_t block_count;
  size_t block_tokens;
};

// The product of a step's weights and blocks of kTokenTiles tiles of tokens each, operand by
// operand, so that other work can be done between them. Where the unit's shape has fewer rows than
// a tile, there is one block.
//
// Activations and sums come from the second cache and are not wanted again before the first is full
// of others: so they are loaded as such. While a tile's sums are stored, and the next block's take
// their place, the others are still being multiplied.
template <size_t kTokenTiles, size_t kPanels, size_t kParts, typename Unit, typename Product>
class UnitBlocks {
 public:
  // The operands of all blocks are shared evenly among `turns` calls of take_turn().
  UnitBlocks(const Product& product, Unit& unit, const UnitStep& step, const UnitPanels& weights,
             UnitTokens tokens, UnitSums (*sums)[kUnitPanels], size_t turns)
      : product_(product),
        unit_(unit),
        step_(step),
        weights_(weights),
        stride_(product.of(0).input_stride_bytes),
        operands_(step.strip.operands()),
        block_tokens_(tokens.block_tokens),
        total_(tokens.block_count * operands_),
        turns_(turns),
        left_(total_),
        token_(tokens.first),
        inputs_(step.strip.input(product.of(0), tokens.first, 0)),
        sums_(sums) {
    if (left_ > 0) each_tile([&]<int kTile>(UnitSums& tile_sums) { begin<kTile>(tile_sums); });
  }

  [[gnu::always_inline]] void take_turn() {
    for (due_ += total_; due_ >= turns_; due_ -= turns_) multiply();
  }
  // Multiplies what is left of them.
  void finish() {
    while (left_ > 0) multiply();
  }

 private:
  // The next operand.
  [[gnu::always_inline]] void multiply() {
    const std::byte* input = inputs_ + operand_ / kParts * kUnitRowBytes;
    unit_.template load_once<4>(input, stride_);
    unit_.template load<6>(weights_.operands[0][operand_], kUnitRowBytes);
    unit_.template multiply<0, 4, 6>();
    if constexpr (kPanels > 1) {
      unit_.template load<7>(weights_.operands[1][operand_], kUnitRowBytes);
      unit_.template multiply<1, 4, 7>();
    }
    if constexpr (kTokenTiles > 1) {
      unit_.template load_once<5>(input + kUnitRows * stride_, stride_);
      unit_.template multiply<2, 5, 6>();
      if constexpr (kPanels > 1) unit_.template multiply<3, 5, 7>();
    }
    --left_;
    if (++operand_ == operands_) end_block();
  }

  [[gnu::noinline]] void end_block() {
    UnitSums(*done)[kUnitPanels] = sums_;
    sums_ += kTokenTiles;
    each_tile([&]<int kTile>(UnitSums& next) {
      unit_.template store<kTile>(done[kTile / 2][kTile % 2], kUnitRowBytes);
      if (left_ > 0) begin<kTile>(next);
    });
    if (step_.last) product_.finish(step_, token_, block_tokens_, done);
    token_ += block_tokens_;
    inputs_ += kTokenTiles * kUnitRows * stride_;
    operand_ = 0;
  }

  // Calls work<tile>(its sums in the block at hand) for each tile of sums.
  template <typename Work>
  [[gnu::always_inline]] void each_tile(Work work) {
    work.template operator()<0>(sums_[0][0]);
    if constexpr (kPanels > 1) work.template operator()<1>(sums_[0][1]);
    if constexpr (kTokenTiles > 1) {
      work.template operator()<2>(sums_[1][0]);
      if constexpr (kPanels > 1) work.template operator()<3>(sums_[1][1]);
    }
  }
  template <int kTile>
  [[gnu::always_inline]] void begin(const UnitSums& sums) {
    if (step_.first) {
      unit_.template zero<kTile>();
    } else {
      unit_.template load_once<kTile>(sums, kUnitRowBytes);
    }
  }

  const Product& product_;
  Unit& unit_;
  const UnitStep& step_;
  const UnitPanels& weights_;
  const size_t stride_;
  const size_t operands_;
  const size_t block_tokens_;
  const size_t total_;  // operands of all blocks
  const size_t turns_;
  size_t left_;
  size_t due_ = 0;  // operands times turns
  size_t operand_ = 0;
  size_t token_;
  const std::byte* inputs_;
  UnitSums (*sums_)[kUnitPanels];
};

// y of one matrix.
struct PlainProduct {
  static constexpr size_t kMatrices = 1;
  const MatmulArguments& arguments;

  const MatmulArguments& of(size_t) const { return arguments; }

  // From the finished sums of `count` tokens from `token` on.
  [[gnu::noinline]] void finish(const UnitStep& step, size_t token, size_t count,
                                UnitSums (*sums)[kUnitPanels]) const {
    for (size_t t = 0; t < count; t += kUnitRows) {
      const size_t rows = count - t < kUnitRows ? count - t : kUnitRows;
      for (size_t panel = 0; panel < step.panels; ++panel) {
        store_unit_sums(arguments, step.panel + panel, token + t, rows, sums[t / kUnitRows][panel]);
      }
    }
  }
};

// A panel's rows of y of the gate and of what it gates for some tokens, and where what follows
// goes.
struct GatedRows {
  const UnitSums (*values)[kUnitPanels];
  size_t tokens;
  size_t rows;
  std::byte* output;
  size_t output_stride_bytes;
};

[[gnu::noinline]] inline void gate_rows(const GatedRows& gated) {
  for (size_t t = 0; t < gated.tokens; ++t) {
    const UnitSums* values = gated.values[t / kUnitRows];
    alignas(64) float products[kPanelRows];
    gate<Silu>(values[0][t % kUnitRows], values[1][t % kUnitRows], kPanelRows, nullptr, products);
    to_bf16(products, gated.rows, gated.output + t * gated.output_stride_bytes);
  }
}

// The gate's panels beside those of what it gates.
struct GatedProduct {
  static constexpr size_t kMatrices = 2;
  const GatedArguments& arguments;

  const MatmulArguments& of(size_t matrix) const {
    return matrix == 0 ? arguments.gate : arguments.up;
  }

  [[gnu::noinline]] void finish(const UnitStep& step, size_t token, size_t count,
                                UnitSums (*sums)[kUnitPanels]) const {
    const size_t row = step.panel * kPanelRows;
    for (size_t t = 0; t < count; ++t) {
      for (size_t matrix = 0; matrix < kMatrices; ++matrix) {
        float* values = sums[t / kUnitRows][matrix][t % kUnitRows];
        store(values, finished_rows(of(matrix), step.panel, token + t, load(values)));
      }
    }
    const size_t rows = rows_of_panel(arguments.gate.matrix, step.panel);
    with_denormals<gate_rows>(GatedRows{
        .values = sums,
        .tokens = count,
        .rows = rows,
        .output = arguments.output + token * arguments.output_stride_bytes + row * sizeof(uint16_t),
        .output_stride_bytes = arguments.output_stride_bytes});
  }
};

struct UnitScratch {
  UnitPanels weights[2];
  // The sums of a group: [panels side by side][tile of tokens][panel].
  alignas(
      64) UnitSums sums[kUnitGroupPanels / kUnitPanels][kUnitChunkTokens / kUnitRows][kUnitPanels];
};

// Unpacks a step's weights, and calls turn() kUnitTurns times for each operand.
template <typename Weights, typename Product, typename Turn>
[[gnu::always_inline]] inline void unpack_step(const Product& product, const UnitStep& step,
                                               UnitPanels& out, Turn turn) {
  constexpr size_t kTurnPairs = kBlockPairs / kUnitTurns;
  const size_t begin = step.strip.column / kPairBlock;
  for (size_t side = 0; side < step.panels * Product::kMatrices; ++side) {
    const auto store = [&, operands = out.operands[side]] [[gnu::always_inline]] (
                           size_t index, size_t pair, const auto& columns) {
      store_pairs(operands[index] + pair * kUnitRowBytes, columns);
      if (pair % kTurnPairs == kTurnPairs - 1) turn();
    };
    Weights::unpack(product.of(side % Product::kMatrices).matrix,
                    step.panel + side / Product::kMatrices, begin, begin + step.strip.blocks, store,
                    [](size_t) {});
  }
}

// The product of a step's weights, all unpacked, and `count` tokens from `token` on; unpacks the
// next step's meanwhile.
template <typename Weights, typename Unit, size_t kPanels, typename Product>
[[gnu::noinline]] void multiply_step(const Product& product, Unit& unit, const UnitStep& step,
                                     const UnitPanels& weights, size_t token, size_t count,
                                     UnitSums (*sums)[kUnitPanels], const UnitStep& next,
                                     UnitPanels& next_weights) {
  constexpr size_t kBlockTokens = 2 * kUnitRows;
  UnitTokens tokens = {token, count / kBlockTokens, kBlockTokens};
  if (count > kUnitRows && count < kBlockTokens) tokens = {token, 1, count};
  if (tokens.block_count > 0) unit.shape(kUnitRows, tokens.block_tokens - kUnitRows);
  const size_t turns = next.panels * Product::kMatrices * next.strip.operands() * kUnitTurns;
  UnitBlocks<2, kPanels, Weights::kParts, Unit, Product> blocks(product, unit, step, weights,
                                                                tokens, sums, turns);
  unpack_step<Weights>(product, next, next_weights,
                       [&] [[gnu::always_inline]] { blocks.take_turn(); });
  blocks.finish();
  const size_t done = tokens.block_count * tokens.block_tokens;
  const size_t left = count - done;
  if (left == 0) return;
  const auto multiply_left = [&]<size_t kTokenTiles> {
    UnitBlocks<kTokenTiles, kPanels, Weights::kParts, Unit, Product>(
        product, unit, step, weights, {token + done, 1, left}, sums + done / kUnitRows, 0)
        .finish();
  };
  if (left > kUnitRows) {
    unit.shape(kUnitRows, left - kUnitRows);
    multiply_left.template operator()<2>();
  } else {
    unit.shape(left, left);
    multiply_left.template operator()<1>();
  }
}

template <typename Weights, typename Unit, typename Product>
inline void multiply_prompt(const Product& product) {
  constexpr size_t kStepPanels = kUnitPanels / Product::kMatrices;
  const MatmulArguments& arguments = product.of(0);
  const UnitWalk<Weights, Product::kMatrices> walk(arguments);
  UnitScratch scratch;
  Unit unit;
  for (size_t token = 0; token < arguments.token_count; token += kUnitChunkTokens) {
    const size_t left = arguments.token_count - token;
    const size_t count = left < kUnitChunkTokens ? left : kUnitChunkTokens;
    UnitStep step = walk.first(arguments.panel_begin);
    if (walk.is_over(step)) return;
    size_t buffer = 0;
    // The first step's weights are unpacked beside no tokens.
    multiply_step<Weights, Unit, kUnitPanels>(product, unit, step, scratch.weights[1], token, 0,
                                              scratch.sums[0], step, scratch.weights[0]);
    while (!walk.is_over(step)) {
      const UnitStep following = walk.after(step);
      UnitSums(*sums)[kUnitPanels] = scratch.sums[(step.panel - step.group) / kStepPanels];
      const auto multiply = step.panels == kStepPanels
                                ? multiply_step<Weights, Unit, kUnitPanels, Product>
                                : multiply_step<Weights, Unit, kUnitPanels / 2, Product>;
      multiply(product, unit, step, scratch.weights[buffer], token, count, sums, following,
               scratch.weights[buffer ^ 1U]);
      step = following;
      buffer ^= 1U;
    }
  }
}

}  // namespace
}  // namespace lockstep
