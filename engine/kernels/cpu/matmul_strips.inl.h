// The matrix product with activations of the form kQ8 for many tokens. Weights are unpacked once
// for all of them, a strip of columns at a time; what a product takes from the activations of a
// strip beside their quants is computed once for all panels of a group. Order of operations as in
// matmul.inl.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/matmul.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// A panel's strip takes 10 KiB of stack, which the nearest cache holds beside the activations of a
// tile of tokens. The strip's activations, of all tokens 64 KiB and 16 to 24 of what is computed
// from them, serve all panels of a group from the second cache, as do the group's sums, 64 KiB:
// whole rows do not fit there where there are many columns.
constexpr size_t kStripBlocks = 16;
constexpr size_t kGroupPanels = 8;

// Part of a panel, unpacked: `count` blocks.
template <typename Tile>
struct Strip {
  BlockOf<Tile> blocks[kStripBlocks];
  size_t count;
};

// The scales and sums that a tile of tokens has in a strip's columns: those that weights of this
// kind ask for.
template <typename Tile>
struct TileInputs {
  static constexpr size_t kStarts = Tile::kOffsetBits == 0 ? 0 : Tile::kHalves ? 2 : 1;
  static constexpr size_t kSums = !Tile::kMinimums ? 0 : Tile::kHalves ? 2 : 1;

  float scales[kTokenTile][kStripBlocks];
  // The integer sums of the halves begin with these, or those of whole blocks.
  int32_t starts[kStarts == 0 ? 1 : kStarts][kTokenTile][kStripBlocks];
  // Minimums are multiplied by these.
  float sums[kSums == 0 ? 1 : kSums][kTokenTile][kStripBlocks];

  // `blocks` of 32 columns of token `t` of the tile, from block `first` of its row on.
  [[gnu::always_inline]] void read(const Rows<1>& row, size_t first, size_t t, size_t blocks) {
    for (size_t i = 0; i < blocks; ++i) scales[t][i] = row.scale(0, first + i);
    if constexpr (kStarts == 1) {
      for (size_t i = 0; i < blocks; ++i) starts[0][t][i] = without_offset(row.sum(0, first + i));
    } else if constexpr (kStarts == 2) {
      for (size_t i = 0; i < blocks; ++i) {
        const int32_t first_sum = row.first_sum(0, first + i);
        starts[0][t][i] = without_offset(first_sum);
        starts[1][t][i] = without_offset(row.sum(0, first + i) - first_sum);
      }
    }
    if constexpr (kSums == 1) {
      for (size_t i = 0; i < blocks; ++i) sums[0][t][i] = row.scaled_sum(0, first + i);
    } else if constexpr (kSums == 2) {
      for (size_t i = 0; i < blocks; ++i) {
        const ScaledHalves halves = row.halves(0, first + i);
        sums[0][t][i] = halves.first;
        sums[1][t][i] = halves.second;
      }
    }
  }

 private:
  static int32_t without_offset(int32_t sum) { return sum * (1 << Tile::kOffsetBits); }
};

// A strip's columns for a chunk of tokens. Places beyond the last in a tile that is not full repeat
// it, as far as a kernel reads them.
template <typename Tile>
struct StripInputs {
  const std::byte* quants;
  size_t stride_bytes;
  size_t last;
  TileInputs<Tile> tiles[kChunkTokens / kTokenTile];

  // `blocks` of 32 columns from block `first` on, for `count` tokens from `token` on.
  void read(const MatmulArguments& arguments, const Q8Row& layout, size_t token, size_t count,
            size_t first, size_t blocks) {
    quants = arguments.input + token * arguments.input_stride_bytes + first * kQ8BlockElements;
    stride_bytes = arguments.input_stride_bytes;
    last = count - 1;
    const size_t rest = count % kTokenTile;
    size_t places = rest == 0 ? 0 : 1;
    while (places < rest) places *= 2;
    for (size_t t = 0; t < count - rest + places; ++t) {
      const Rows<1> row = rows_from<1>(arguments, layout, token + (t < last ? t : last), 1);
      TileInputs<Tile>& tile = tiles[t / kTokenTile];
      if (blocks == kStripBlocks) {
        tile.read(row, first, t % kTokenTile, kStripBlocks);
      } else {
        tile.read(row, first, t % kTokenTile, blocks);
      }
    }
  }
};

// The first kTokens of a strip's tile that begins with token `token` of the chunk, as Rows; `index`
// counts the strip's blocks.
template <typename Tile, size_t kTokens>
struct StripRows {
  static constexpr bool kUnpacked = true;

  const TileInputs<Tile>& tile;
  const std::byte* row[kTokens];

  StripRows(const StripInputs<Tile>& inputs, size_t token)
      : tile(inputs.tiles[token / kTokenTile]) {
    for (size_t t = 0; t < kTokens; ++t) {
      const size_t place = token + t < inputs.last ? token + t : inputs.last;
      row[t] = inputs.quants + place * inputs.stride_bytes;
    }
  }

  const std::byte* quants(size_t t, size_t index, size_t column) const {
    return row[t] + index * kQ8BlockElements + column;
  }
  float scale(size_t t, size_t index) const { return tile.scales[t][index]; }
  template <typename, int kHalf>
  [[gnu::always_inline]] I32x16 start(size_t t, size_t index) const {
    if constexpr (Tile::kOffsetBits == 0) {
      return broadcast_int(0);
    } else {
      return broadcast_int(tile.starts[kHalf == 1 ? 1 : 0][t][index]);
    }
  }
  float scaled_sum(size_t t, size_t index) const { return tile.sums[0][t][index]; }
  ScaledHalves halves(size_t t, size_t index) const {
    return {tile.sums[0][t][index], tile.sums[1][t][index]};
  }
};

// sums[t] += strip, for `count` tokens from `token` of the chunk on, at most kTokens. There are
// kTokens sums.
template <typename Tile, size_t kTokens>
inline void multiply_strip(const Strip<Tile>& strip, const StripInputs<Tile>& inputs, size_t token,
                           size_t count, F32x16* sums) {
  if constexpr (kTokens > 1) {
    if (count <= kTokens / 2) {
      return multiply_strip<Tile, kTokens / 2>(strip, inputs, token, count, sums);
    }
  }
  const StripRows<Tile, kTokens> rows(inputs, token);
  F32x16 local[1][kTokens];
#pragma GCC unroll 8
  for (size_t t = 0; t < kTokens; ++t) local[0][t] = sums[t];
  for (size_t i = 0; i < strip.count; ++i) multiply_block<Tile>(strip.blocks[i], rows, i, local);
#pragma GCC unroll 8
  for (size_t t = 0; t < kTokens; ++t) sums[t] = local[0][t];
}

// Blocks [first, first + strip.count) of a panel's rows.
template <typename Tile>
inline void unpack_strip(const PackedMatrix& matrix, size_t panel, size_t first,
                         Strip<Tile>& strip) {
  constexpr size_t kTileBlocks = Tile::kSteps * Tile::kStepBlocks;
  const size_t tile_count = matrix.columns / (kTileBlocks * kQ8BlockElements);
  const std::byte* packed =
      matrix.panels + (panel * tile_count + first / kTileBlocks) * Tile::kTileBytes;
  for (size_t begin = 0; begin < strip.count; begin += kTileBlocks) {
    const typename Tile::Scales scales = Tile::read_scales(packed);
    for (size_t step = 0; step < Tile::kSteps; ++step) {
      each_block<Tile>(packed, scales, step,
                       [&] [[gnu::always_inline]] (const auto& block, size_t index) {
                         strip.blocks[begin + index] = block;
                       });
    }
    packed += Tile::kTileBytes;
  }
}
template <General Tile>
inline void unpack_strip(const PackedMatrix& matrix, size_t panel, size_t first,
                         Strip<Tile>& strip) {
  const auto unpack = kUnpackBlocks<Tile::kMinimums>[static_cast<size_t>(matrix.format)];
  for (size_t begin = 0; begin < strip.count; begin += kGeneralBlocks) {
    const size_t end = begin + kGeneralBlocks < strip.count ? begin + kGeneralBlocks : strip.count;
    unpack(matrix, panel, first + begin, first + end, strip.blocks + begin);
  }
}

// Memory that is asked for into the second cache, so many bytes at a time.
class NextStrip {
 public:
  NextStrip(const std::byte* begin, size_t bytes, size_t share)
      : next_(begin), left_(bytes), share_(share) {}
  void ask() {
    const size_t bytes = left_ < share_ ? left_ : share_;
    for (size_t i = 0; i < bytes; i += kLineBytes) __builtin_prefetch(next_ + i, 0, kSecondCache);
    next_ += bytes;
    left_ -= bytes;
  }

 private:
  const std::byte* next_;
  size_t left_;
  size_t share_;
};

// On the stack.
template <typename Tile>
struct StripScratch {
  F32x16 sums[kGroupPanels][kChunkTokens];
  StripInputs<Tile> inputs;
  Strip<Tile> strip;
};

// Panels [panel, panel_end), at most kGroupPanels, for `count` tokens from `token` on, at most
// kChunkTokens. While a strip is multiplied, the next one is asked for.
template <typename Tile>
inline void multiply_group(const MatmulArguments& arguments, const Q8Row& layout, size_t panel,
                           size_t panel_end, size_t token, size_t count,
                           StripScratch<Tile>& scratch) {
  const PackedMatrix& matrix = arguments.matrix;
  const size_t blocks = matrix.columns / kQ8BlockElements;
  const size_t stride = panel_bytes(matrix.format, matrix.columns);
  const size_t group = panel_end - panel;
  const size_t tiles = (count + kTokenTile - 1) / kTokenTile;
  for (size_t p = 0; p < group; ++p) {
    for (size_t t = 0; t < tiles * kTokenTile; ++t) scratch.sums[p][t] = zero();
  }
  for (size_t first = 0; first < blocks; first += kStripBlocks) {
    const size_t left = blocks - first;
    scratch.strip.count = left < kStripBlocks ? left : kStripBlocks;
    scratch.inputs.read(arguments, layout, token, count, first, scratch.strip.count);
    const size_t bytes = stride / blocks * kStripBlocks;
    for (size_t p = 0; p < group; ++p) {
      unpack_strip<Tile>(matrix, panel + p, first, scratch.strip);
      const bool last = p + 1 == group;
      const size_t next = last ? 0 : p + 1;
      const size_t next_first = last ? first + kStripBlocks : first;
      NextStrip next_strip(matrix.panels + (panel + next) * stride + stride / blocks * next_first,
                           bytes, (bytes / tiles / kLineBytes + 1) * kLineBytes);
      for (size_t t = 0; t < count; t += kTokenTile) {
        next_strip.ask();
        multiply_strip<Tile, kTokenTile>(scratch.strip, scratch.inputs, t, count - t,
                                         scratch.sums[p] + t);
      }
    }
  }
  for (size_t p = 0; p < group; ++p) {
    for (size_t t = 0; t < count; ++t) {
      store_rows(arguments, panel + p, token + t, scratch.sums[p][t]);
    }
  }
}

// More than kTokenTile tokens.
template <typename Tile>
[[gnu::noinline]] void multiply_strips(const MatmulArguments& arguments) {
  const Q8Row layout = layout_of(arguments);
  StripScratch<Tile> scratch;
  for (size_t token = 0; token < arguments.token_count; token += kChunkTokens) {
    const size_t left = arguments.token_count - token;
    const size_t count = left < kChunkTokens ? left : kChunkTokens;
    for (size_t panel = arguments.panel_begin; panel < arguments.panel_end; panel += kGroupPanels) {
      const size_t panels_left = arguments.panel_end - panel;
      const size_t end = panel + (panels_left < kGroupPanels ? panels_left : kGroupPanels);
      multiply_group<Tile>(arguments, layout, panel, end, token, count, scratch);
    }
  }
}

// One panel of a format that is unpacked by a function of its own, for all tokens, at most kTokens.
template <General Tile, size_t kTokens>
inline void multiply_general_panel(const MatmulArguments& arguments, const Q8Row& layout,
                                   size_t panel) {
  const size_t count = arguments.token_count;
  if constexpr (kTokens > 1) {
    if (count <= kTokens / 2) {
      return multiply_general_panel<Tile, kTokens / 2>(arguments, layout, panel);
    }
  }
  const Rows<kTokens> rows = rows_from<kTokens>(arguments, layout, 0, count);
  F32x16 sums[1][kTokens];
  for (F32x16& sum : sums[0]) sum = zero();
  each_panel_block<Tile>(arguments.matrix, panel, 0, arguments.matrix.columns / kQ8BlockElements,
                         [&] [[gnu::always_inline]] (const std::byte*, const BlockOf<Tile>& block,
                                                     size_t, size_t index) {
                           multiply_block<Tile>(block, rows, index, sums);
                         });
  for (size_t t = 0; t < count; ++t) store_rows(arguments, panel, t, sums[0][t]);
}

template <General Tile>
void matmul_general(const MatmulArguments& arguments) {
  if (arguments.token_count > kTokenTile) return multiply_strips<Tile>(arguments);
  const Q8Row layout = layout_of(arguments);
  for (size_t panel = arguments.panel_begin; panel < arguments.panel_end; ++panel) {
    multiply_general_panel<Tile, kTokenTile>(arguments, layout, panel);
  }
}

template <typename Tile>
void matmul_quantized(const MatmulArguments& arguments) {
  const Q8Row layout = layout_of(arguments);
  const auto one = [&](size_t panel) { multiply_all_tokens<Tile, 1>(arguments, layout, panel, 0); };
  if constexpr (kPanelTile == 2) {
    if (arguments.panel_streams == 2 && arguments.token_count <= kStreamTokens<Tile>) {
      const auto two = [&](size_t panel, size_t apart) {
        multiply_all_tokens<Tile, 2>(arguments, layout, panel, apart);
      };
      return each_two_panels(arguments.panel_begin, arguments.panel_end, two, one);
    }
  }
  if (arguments.token_count <= kTokenTile) {
    for (size_t panel = arguments.panel_begin; panel < arguments.panel_end; ++panel) one(panel);
    return;
  }
  multiply_strips<Tile>(arguments);
}

}  // namespace
}  // namespace lockstep
