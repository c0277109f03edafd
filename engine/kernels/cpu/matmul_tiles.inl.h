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

// A strip is 256 columns (of an F16, which has two parts, 128): a tile of the largest formats. A
// panel's strip of weights is 8 KiB.
constexpr size_t kUnitStripBlocks = 8;
// Prompts: 4 panels' strips, 32 KiB, stay in the nearest cache beside the 16 KiB of activations of
// 32 tokens, which they are multiplied by; the activations' strip of all tokens (256 KiB), their
// sums (128 KiB) and the weights that are unpacked meanwhile stay in the second (2 MiB where there
// is AMX).
constexpr size_t kUnitPanels = 4;
constexpr size_t kUnitChunkTokens = 512;

// One panel's strip as second operands.
struct UnitWeights {
  alignas(64) std::byte blocks[kUnitStripBlocks][kUnitTileBytes];
};
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

// Where Weights::unpack() puts pairs of columns.
[[gnu::always_inline]] inline auto store_into(UnitWeights& weights, size_t first_operand) {
  return [&weights, first_operand] [[gnu::always_inline]] (size_t index, size_t pair,
                                                           const auto& columns) {
    store_pairs(weights.blocks[first_operand + index] + pair * kUnitRowBytes, columns);
  };
}

inline void store_unit_sums(const MatmulArguments& arguments, size_t panel, size_t token,
                            size_t count, const UnitSums& sums) {
  for (size_t t = 0; t < count; ++t) store_rows(arguments, panel, token + t, load(sums[t]));
}

// Prompts: what is unpacked at once, a strip of up to kUnitPanels panels.
struct UnitStep {
  size_t panel;
  size_t panels;
  UnitStrip strip;
};

// The steps of a product: panel group after panel group, in each strip after strip.
template <typename Weights>
struct UnitSteps {
  static constexpr size_t kMostBlocks = kUnitStripBlocks / Weights::kParts;

  const MatmulArguments& arguments;
  size_t blocks = (arguments.matrix.columns + kPairBlock - 1) / kPairBlock;
  size_t strips = (blocks + kMostBlocks - 1) / kMostBlocks;

  size_t count() const {
    const size_t panels = arguments.panel_end - arguments.panel_begin;
    return (panels + kUnitPanels - 1) / kUnitPanels * strips;
  }
  UnitStep at(size_t index) const {
    const size_t panel = arguments.panel_begin + index / strips * kUnitPanels;
    const size_t panels_left = arguments.panel_end - panel;
    const size_t block = index % strips * kMostBlocks;
    const size_t left = blocks - block;
    return {panel,
            panels_left < kUnitPanels ? panels_left : kUnitPanels,
            {block * kPairBlock, left < kMostBlocks ? left : kMostBlocks, Weights::kParts}};
  }
};

// Unpacks a step's weights bit by bit.
template <typename Weights>
class UnitUnpacking {
 public:
  UnitUnpacking(const MatmulArguments& arguments, const UnitStep& step, UnitWeights* out)
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
                    store_into(out_[panel], block * Weights::kParts), [](size_t) {});
  }

  const MatmulArguments& arguments_;
  UnitStep step_;
  UnitWeights* out_;
  size_t units_;
  size_t done_ = 0;
};

// The sums of one product of tiles: kTokenTiles x kPanels of them, which weights[p] x tokens from
// `token` on are added to. `first`: they begin with zero.
template <size_t kTokenTiles, size_t kPanels, typename Unit>
[[gnu::noinline]] void multiply_tiles(const MatmulArguments& arguments, Unit& unit,
                                      const UnitStrip& strip, size_t token,
                                      const UnitWeights* weights, UnitSums* const (&sums)[2],
                                      bool first) {
  if (first) {
    unit.template zero<0>();
    if constexpr (kPanels > 1) unit.template zero<1>();
    if constexpr (kTokenTiles > 1) unit.template zero<2>();
    if constexpr (kTokenTiles > 1 && kPanels > 1) unit.template zero<3>();
  } else {
    unit.template load<0>(sums[0][0], kUnitRowBytes);
    if constexpr (kPanels > 1) unit.template load<1>(sums[0][1], kUnitRowBytes);
    if constexpr (kTokenTiles > 1) unit.template load<2>(sums[1][0], kUnitRowBytes);
    if constexpr (kTokenTiles > 1 && kPanels > 1) {
      unit.template load<3>(sums[1][1], kUnitRowBytes);
    }
  }
  const size_t stride = arguments.input_stride_bytes;
  for (size_t operand = 0; operand < strip.operands(); ++operand) {
    unit.template load<4>(strip.input(arguments, token, operand), stride);
    unit.template load<6>(weights[0].blocks[operand], kUnitRowBytes);
    unit.template multiply<0, 4, 6>();
    if constexpr (kPanels > 1) {
      unit.template load<7>(weights[1].blocks[operand], kUnitRowBytes);
      unit.template multiply<1, 4, 7>();
    }
    if constexpr (kTokenTiles > 1) {
      unit.template load<5>(strip.input(arguments, token + kUnitRows, operand), stride);
      unit.template multiply<2, 5, 6>();
      if constexpr (kPanels > 1) unit.template multiply<3, 5, 7>();
    }
  }
  unit.template store<0>(sums[0][0], kUnitRowBytes);
  if constexpr (kPanels > 1) unit.template store<1>(sums[0][1], kUnitRowBytes);
  if constexpr (kTokenTiles > 1) unit.template store<2>(sums[1][0], kUnitRowBytes);
  if constexpr (kTokenTiles > 1 && kPanels > 1) unit.template store<3>(sums[1][1], kUnitRowBytes);
}

struct UnitScratch {
  UnitWeights weights[2][kUnitPanels];
  alignas(64) UnitSums sums[kUnitChunkTokens / kUnitRows][kUnitPanels];
};

// The product of a step's weights, all unpacked, and `count` tokens from `token` on; unpacks the
// next step's between the tiles.
template <typename Weights, typename Unit>
inline void multiply_step(const MatmulArguments& arguments, Unit& unit, const UnitStep& step,
                          const UnitWeights* weights, size_t token, size_t count,
                          UnitScratch& scratch, UnitUnpacking<Weights>& next) {
  constexpr size_t kBlockTokens = 2 * kUnitRows;
  const bool first = step.strip.column == 0;
  const size_t token_blocks = (count + kBlockTokens - 1) / kBlockTokens;
  const size_t products = token_blocks * ((step.panels + 1) / 2);
  size_t done = 0;
  for (size_t block = 0; block < token_blocks; ++block) {
    const size_t left = count - block * kBlockTokens;
    const bool two = left > kUnitRows;
    const size_t first_rows = two ? kUnitRows : left;
    unit.shape(first_rows, left >= kBlockTokens ? kUnitRows : two ? left - kUnitRows : first_rows);
    for (size_t panel = 0; panel < step.panels; panel += 2) {
      const size_t from = token + block * kBlockTokens;
      UnitSums* const sums[2] = {&scratch.sums[2 * block][panel],
                                 &scratch.sums[2 * block + 1][panel]};
      const auto multiply = [&]<size_t kTokenTiles, size_t kPanels> {
        multiply_tiles<kTokenTiles, kPanels>(arguments, unit, step.strip, from, weights + panel,
                                             sums, first);
      };
      const bool pair = panel + 2 <= step.panels;
      if (two && pair) multiply.template operator()<2, 2>();
      if (two && !pair) multiply.template operator()<2, 1>();
      if (!two && pair) multiply.template operator()<1, 2>();
      if (!two && !pair) multiply.template operator()<1, 1>();
      next.advance(++done, products);
    }
  }
}

template <typename Weights, typename Unit>
inline void multiply_prompt(const MatmulArguments& arguments) {
  const UnitSteps<Weights> steps = {arguments};
  if (steps.count() == 0) return;
  UnitScratch scratch;
  Unit unit;
  for (size_t token = 0; token < arguments.token_count; token += kUnitChunkTokens) {
    const size_t left = arguments.token_count - token;
    const size_t count = left < kUnitChunkTokens ? left : kUnitChunkTokens;
    UnitUnpacking<Weights>(arguments, steps.at(0), scratch.weights[0]).advance(1, 1);
    for (size_t index = 0; index < steps.count(); ++index) {
      const UnitStep step = steps.at(index);
      const bool last = index + 1 == steps.count();
      UnitStep following = last ? UnitStep{} : steps.at(index + 1);
      UnitUnpacking<Weights> next(arguments, following, scratch.weights[(index + 1) % 2]);
      multiply_step<Weights, Unit>(arguments, unit, step, scratch.weights[index % 2], token, count,
                                   scratch, next);
      if ((index + 1) % steps.strips != 0) continue;
      for (size_t panel = 0; panel < step.panels; ++panel) {
        for (size_t t = 0; t < count; t += kUnitRows) {
          store_unit_sums(arguments, step.panel + panel, token + t,
                          count - t < kUnitRows ? count - t : kUnitRows,
                          scratch.sums[t / kUnitRows][panel]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
