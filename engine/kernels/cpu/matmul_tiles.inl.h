// The matrix product with activations of the form kBf16 through a matrix unit, once for all formats
// and units: the same bits as matmul_bf16.inl.h. Tokens are the rows of the first operand, read as
// they lie; weights are unpacked to the second, of 16 pairs of columns x 16 rows of a panel. Over
// all columns, sums stay in a tile or go to memory and back as they are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/denormals.h"
#include "engine/kernels/cpu/elementwise.inl.h"
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

// What is unpacked at once: of each of a product's matrices the same panels.
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

// Unpacks a step's weights bit by bit.
template <typename Weights, typename Product>
class UnitUnpacking {
 public:
  UnitUnpacking(const Product& product, const UnitStep& step, UnitPanels& out)
      : product_(product),
        step_(step),
        out_(out),
        units_((step.strip.blocks + Weights::kUnitBlocks - 1) / Weights::kUnitBlocks) {}

  // Brings it to `part` of `parts`.
  void advance(size_t part, size_t parts) {
    const size_t operands = step_.panels * Product::kMatrices * units_;
    for (const size_t end = operands * part / parts; done_ < end; ++done_) {
      unpack(done_ / units_, done_ % units_ * Weights::kUnitBlocks);
    }
  }

 private:
  [[gnu::noinline]] void unpack(size_t side, size_t block) {
    const size_t begin = step_.strip.column / kPairBlock + block;
    Weights::unpack(product_.of(side % Product::kMatrices).matrix,
                    step_.panel + side / Product::kMatrices, begin, begin + Weights::kUnitBlocks,
                    store_into(out_.operands[side] + block * Weights::kParts), [](size_t) {});
  }

  const Product& product_;
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
    silu_multiply(values[0][t % kUnitRows], values[1][t % kUnitRows], kPanelRows, products);
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
  // Of a group: [panels side by side][tile of tokens][panel].
  alignas(
      64) UnitSums sums[kUnitGroupPanels / kUnitPanels][kUnitChunkTokens / kUnitRows][kUnitPanels];
};

// The product of a step's weights, all unpacked, and `count` tokens from `token` on; unpacks the
// next step's between the tiles.
template <typename Weights, typename Unit, size_t kPanels, typename Product>
[[gnu::noinline]] void multiply_step(const Product& product, Unit& unit, const UnitStep& step,
                                     const UnitPanels& weights, size_t token, size_t count,
                                     UnitSums (*sums)[kUnitPanels],
                                     UnitUnpacking<Weights, Product>& next) {
  constexpr size_t kBlockTokens = 2 * kUnitRows;
  const size_t blocks = count / kBlockTokens;
  const size_t parts = (count + kBlockTokens - 1) / kBlockTokens;
  const auto done = [&](size_t block) {
    if (step.last) {
      const size_t from = block * kBlockTokens;
      product.finish(step, token + from, count - from < kBlockTokens ? count - from : kBlockTokens,
                     sums + 2 * block);
    }
    next.advance(block + 1, parts);
  };
  if (blocks > 0) {
    unit.shape(kUnitRows, kUnitRows);
    multiply_blocks<2, kPanels, Weights::kParts>(product.of(0), unit, step, weights, token, blocks,
                                                 sums, done);
  }
  const size_t left = count % kBlockTokens;
  if (left == 0) return;
  const auto multiply_left = [&]<size_t kTokenTiles> {
    multiply_blocks<kTokenTiles, kPanels, Weights::kParts>(
        product.of(0), unit, step, weights, token + blocks * kBlockTokens, 1, sums + 2 * blocks,
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
    UnitUnpacking<Weights, Product>(product, step, scratch.weights[buffer]).advance(1, 1);
    while (!walk.is_over(step)) {
      const UnitStep following = walk.after(step);
      UnitUnpacking<Weights, Product> next(product, following, scratch.weights[buffer ^ 1U]);
      UnitSums(*sums)[kUnitPanels] = scratch.sums[(step.panel - step.group) / kStepPanels];
      const auto multiply = step.panels == kStepPanels
                                ? multiply_step<Weights, Unit, kUnitPanels, Product>
                                : multiply_step<Weights, Unit, kUnitPanels / 2, Product>;
      multiply(product, unit, step, scratch.weights[buffer], token, count, sums, next);
      step = following;
      buffer ^= 1U;
    }
  }
}

}  // namespace
}  // namespace lockstep
