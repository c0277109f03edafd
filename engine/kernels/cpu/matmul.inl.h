// The matrix product with activations of the form kQ8, once for all quantized formats and
// instruction sets. A lane is a row, a token has its own sums, blocks of 32 columns are taken in
// order: so neither the tiles nor the split between workers is seen in the bits.
//
// Order of operations per block of 32 columns, in f32; isum is the exact integer sum of weight * q
// with the format's offset taken off, block.scale is d, or d * float(sc) rounded once:
//   acc = fma(float(isum), block.scale * scale, acc)
// then, in formats with minimums (block.second is -m, or dmin * float(m) rounded once)
//   acc = fma(block.second, scaled_sum, acc)
// but in formats with halves, isum over 16 columns each
//   acc = fma(float(isum of the first half), block.scale * scale, acc)
//   acc = fma(float(isum of the second half), block.second * scale, acc)
// and in those of them with minimums, sum being the activations' over 16 columns each, negated
//   acc = fma(block.first_minimum, scale * float(sum of the first half), acc), the second alike
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "engine/kernels/cpu/tiles.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// How panels are walked as two streams of memory, side by side.
// Calls two(panel, apart) for pairs of the panels [begin, end), `apart` from one to the other, and
// one(panel) for the last of an odd number. Each stream goes on from panel to panel without a
// break, and so does what is asked for ahead of it.
template <typename Two, typename One>
[[gnu::always_inline]] inline void each_two_panels(size_t begin, size_t end, Two two, One one) {
  const size_t half = (end - begin) / 2;
  for (size_t panel = begin; panel < begin + half; ++panel) two(panel, half);
  if (begin + 2 * half < end) one(begin + 2 * half);
}

// As many tokens keep their sums on the stack while a product walks over columns.
constexpr size_t kChunkTokens = 128;
static_assert(kChunkTokens % kTokenTile == 0);

// How far ahead memory is asked for of two streams side by side, which only Intel's processors walk
// (see preferred_panel_streams()), and into the first cache. On two cores of a Granite Rapids, GB/s
// without, 1, 2 and 4 KiB ahead: Q4_0 29.8, 31.9, 34.4, 31.5; Q4_K 28.0, 30.6, 33.8, 29.6; Q6_K
// 18.8, 28.4, 29.6, 27.0; Q8_0, which has the least to unpack, 30.6, 33.5, 31.6, 29.7. Into the
// second cache 1 to 2 GB/s less.
template <typename Tile>
constexpr size_t kStreamPrefetchBytes = Tile::kWidest == 0 ? 1024 : 2048;

// The number of blocks of one of two streams that are taken before those of the other, in formats
// whose tile is one block; in others a turn is a step of a tile.
constexpr size_t kTurnBlocks = 2;
// Whether two streams are multiplied side by side, from so many tokens on; with fewer, and in other
// formats, they take turns. On two cores of a Granite Rapids, GB/s of 4, 6, 8 and 16 tokens in
// turns (with 6 as with 8, Q6_K with 8 as one stream) and side by side: Q4_0 29.2, 23.0, 22.5, 11.7
// and 30.0, 26.7, 23.9, 12.6; Q4_K 28.2, 20.1, 19.8, 10.0 and 28.3, 25.3, 22.3, 11.6;
// Q6_K 25.9, 18.0, 17.6, 9.7 and 25.9, 22.0, 19.7, 10.6; Q8_0 29.8, 28.0, 26.5, 16.7
// and 30.6, 28.7, 27.1, 18.0. Not Q5_K, whose fifth bits, kept for both blocks of a step, are too
// many for the registers: 27.7, 20.8, 20.5, 10.4 and 25.9, 20.0, 20.1, 10.5.
template <typename Tile>
constexpr bool kSideBySide = kSharesActivations && !std::is_same_v<Tile, Q5_KTile>;
constexpr size_t kSideBySideTokensLeast = 3;

// The most tokens that are multiplied with two streams. On two cores of a Granite Rapids, GB/s with
// one and with two streams that take turns: 2 tokens Q4_0 27.9, 33.2, Q4_K 26.8, 30.8, Q6_K 26.7,
// 28.4, Q8_0 31.4, 32.7; 8 tokens Q4_0 20.3, 22.8, Q4_K 18.7, 19.7, Q6_K 19.0, 17.9, Q8_0 24.6,
// 28.0; 16 tokens, the one stream as strips, Q4_0 9.4, 11.9, Q4_K 9.2, 10.2, Q6_K 10.1, 9.6, Q8_0
// 14.4, 17.3.
template <typename Tile>
constexpr size_t kStreamTokens =
    Tile::kHalves && !kSideBySide<Tile> ? kTokenTile / 2 : 2 * kTokenTile;

inline float read_float(const std::byte* p) {
  float value = 0;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

inline int32_t read_int(const std::byte* p) {
  int32_t value = 0;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

// The layout of the input's rows, as seen from the first column that is multiplied.
inline Q8Row layout_of(const MatmulArguments& arguments) {
  const size_t columns =
      arguments.row_columns == 0 ? arguments.matrix.columns : arguments.row_columns;
  const size_t first = arguments.row_first;
  const size_t bytes = first / kQ8BlockElements * sizeof(float);
  Q8Row layout = q8_row(columns);
  layout.scales += bytes - first;
  layout.sums += bytes - first;
  layout.first_sums += bytes - first;
  layout.scaled_sums += bytes - first;
  return layout;
}

// The sums of a block's halves, negated, times its scale.
struct ScaledHalves {
  float first;
  float second;
};

inline ScaledHalves scaled_halves(float scale, int32_t first, int32_t both) {
  return {scale * static_cast<float>(first), scale * static_cast<float>(both - first)};
}

// kTokens rows of activations. Kernels exist for 1, 2, 4 ... tokens: a number between is padded
// with copies whose results are dropped, which costs little beside reading the weights. `index`
// counts a row's blocks of 32 columns, and kHalf says which half of one is meant: 0 or 1, or -1 for
// the whole.
template <size_t kTokens>
struct Rows {
  static constexpr bool kUnpacked = false;  // blocks are in memory

  const std::byte* row[kTokens];
  Q8Row layout;

  // Four columns from `column` of the block on.
  const std::byte* quants(size_t t, size_t index, size_t column) const {
    return row[t] + index * kQ8BlockElements + column;
  }
  float scale(size_t t, size_t index) const {
    return read_float(row[t] + layout.scales + index * sizeof(float));
  }
  // The integer sum's start, which takes off the weights' offset.
  template <typename Tile, int kHalf>
  [[gnu::always_inline]] I32x16 start(size_t t, size_t index) const {
    if constexpr (Tile::kOffsetBits == 0) {
      return broadcast_int(0);
    } else {
      if constexpr (kHalf == 0) {
        return shift_left<Tile::kOffsetBits>(broadcast_int(first_sum(t, index)));
      }
      const I32x16 whole = broadcast_int(sum(t, index));
      if constexpr (kHalf == 1) {
        const I32x16 first = broadcast_int(first_sum(t, index));
        return shift_left<Tile::kOffsetBits>(sub(whole, first));
      }
      return shift_left<Tile::kOffsetBits>(whole);
    }
  }
  float scaled_sum(size_t t, size_t index) const {
    return read_float(row[t] + layout.scaled_sums + index * sizeof(float));
  }
  ScaledHalves halves(size_t t, size_t index) const {
    return scaled_halves(scale(t, index), first_sum(t, index), sum(t, index));
  }

  int32_t sum(size_t t, size_t index) const {
    return read_int(row[t] + layout.sums + index * sizeof(int32_t));
  }
  int32_t first_sum(size_t t, size_t index) const {
    return read_int(row[t] + layout.first_sums + index * sizeof(int32_t));
  }
};

// The rows of `count` tokens from `token` on; the places beyond `count` repeat the last one.
template <size_t kTokens>
inline Rows<kTokens> rows_from(const MatmulArguments& arguments, const Q8Row& layout, size_t token,
                               size_t count) {
  Rows<kTokens> rows;
  for (size_t t = 0; t < kTokens; ++t) {
    const size_t index = token + (t < count ? t : count - 1);
    rows.row[t] = arguments.input + index * arguments.input_stride_bytes;
  }
  rows.layout = layout;
  return rows;
}

// sums += the groups [kBegin, kEnd) of a block of each panel, their integer sums times kScale of
// the block and the activations' scale. block_of(p) is panel p's block; `rows` are Rows or alike.
template <typename Tile, size_t kBegin, size_t kEnd, int kHalf, F32x16 Block::*kScale,
          size_t kPanels, size_t kTokens, typename GetBlock, typename Inputs>
[[gnu::always_inline]] inline void multiply_groups(GetBlock block_of, const Inputs& rows,
                                                   size_t index, F32x16 (&sums)[kPanels][kTokens]) {
  Dot<Tile::kWidest, Tile::kHalves> dots[kPanels][kTokens];
#pragma GCC unroll 8
  for (size_t t = 0; t < kTokens; ++t) {
    const I32x16 start = rows.template start<Tile, kHalf>(t, index);
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) dots[p][t].begin(start);
  }
#pragma GCC unroll 8
  for (size_t group = kBegin; group < kEnd; ++group) {
    Bytes weights[kPanels];
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) {
      weights[p] = block_of(p).weights[group];
      if constexpr (Inputs::kUnpacked) keep_loaded(weights[p]);
    }
#pragma GCC unroll 8
    for (size_t t = 0; t < kTokens; ++t) {
#pragma GCC unroll 2
      for (size_t p = 0; p < kPanels; ++p) {
        dots[p][t].add(weights[p], rows.quants(t, index, 4 * group), group);
        // Free to add as it likes, GCC 12 forms the products of all groups and tokens before it
        // adds any: several times as many as there are registers.
        if constexpr (kTokens > 1) dots[p][t].keep_order(group);
      }
    }
  }
#pragma GCC unroll 2
  for (size_t p = 0; p < kPanels; ++p) {
    const F32x16 scale = read_whole(block_of(p).*kScale);
#pragma GCC unroll 8
    for (size_t t = 0; t < kTokens; ++t) {
      const I32x16 isum = dots[p][t].finish(rows.template start<Tile, kHalf>(t, index));
      const F32x16 factor = mul(scale, broadcast(rows.scale(t, index)));
      sums[p][t] = fma(to_float(isum), factor, sums[p][t]);
    }
  }
}

// sums += the minimums of both halves of a block of each panel, times the activations' sums.
template <size_t kPanels, size_t kTokens, typename GetBlock, typename Inputs>
[[gnu::always_inline]] inline void add_minimums_of_halves(GetBlock block_of, const Inputs& rows,
                                                          size_t index,
                                                          F32x16 (&sums)[kPanels][kTokens]) {
#pragma GCC unroll 8
  for (size_t t = 0; t < kTokens; ++t) {
    const ScaledHalves halves = rows.halves(t, index);
    const F32x16 first_sum = broadcast(halves.first);
    const F32x16 second_sum = broadcast(halves.second);
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) {
      sums[p][t] = fma(read_whole(block_of(p).first_minimum), first_sum, sums[p][t]);
      sums[p][t] = fma(read_whole(block_of(p).second_minimum), second_sum, sums[p][t]);
    }
  }
}

// sums += one block of 32 columns of each panel.
template <typename Tile, size_t kPanels, size_t kTokens, typename GetBlock, typename Inputs>
[[gnu::always_inline]] inline void multiply_blocks(GetBlock block_of, const Inputs& rows,
                                                   size_t index, F32x16 (&sums)[kPanels][kTokens]) {
  if constexpr (Tile::kHalves) {
    multiply_groups<Tile, 0, 4, 0, &Block::scale>(block_of, rows, index, sums);
    multiply_groups<Tile, 4, 8, 1, &Block::second>(block_of, rows, index, sums);
  } else {
    multiply_groups<Tile, 0, 8, -1, &Block::scale>(block_of, rows, index, sums);
  }
  if constexpr (Tile::kMinimums && Tile::kHalves) {
    add_minimums_of_halves(block_of, rows, index, sums);
  } else if constexpr (Tile::kMinimums) {
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) {
      const F32x16 second = read_whole(block_of(p).second);
#pragma GCC unroll 8
      for (size_t t = 0; t < kTokens; ++t) {
        sums[p][t] = fma(second, broadcast(rows.scaled_sum(t, index)), sums[p][t]);
      }
    }
  }
}

// sums += one block of 32 columns of one panel.
template <typename Tile, size_t kTokens, typename Inputs>
[[gnu::always_inline]] inline void multiply_block(const BlockOf<Tile>& block, const Inputs& rows,
                                                  size_t index, F32x16 (&sums)[1][kTokens]) {
  const auto block_of = [&] [[gnu::always_inline]] (size_t) -> const auto& {
    return block;
  };
  multiply_blocks<Tile>(block_of, rows, index, sums);
}

inline size_t rows_of_panel(const PackedMatrix& matrix, size_t panel) {
  const size_t left = matrix.rows - panel * kPanelRows;
  return left < kPanelRows ? left : kPanelRows;
}

// A panel's sums for one token, scaled and with their bias.
inline F32x16 finished_rows(const MatmulArguments& arguments, size_t panel, size_t token,
                            F32x16 sum) {
  if (arguments.token_scales != nullptr) sum = mul(sum, broadcast(arguments.token_scales[token]));
  if (arguments.bias == nullptr) return sum;
  const float* bias = arguments.bias + panel * kPanelRows;
  return add(sum, load_first(bias, rows_of_panel(arguments.matrix, panel)));
}

// y of one panel's rows for one token, from their sums.
inline void store_rows(const MatmulArguments& arguments, size_t panel, size_t token, F32x16 sum) {
  const size_t count = rows_of_panel(arguments.matrix, panel);
  float* output = arguments.output + token * arguments.output_stride + panel * kPanelRows;
  sum = finished_rows(arguments, panel, token, sum);
  if (arguments.accumulate) sum = add(load_first(output, count), sum);
  store_first(output, sum, count);
}

// kPanels panels side by side, `apart` from one to the next, for `count` tokens from `token` on, at
// most kTokens, each block multiplied as it is unpacked. Panels take turns, so that the streams of
// memory that they are advance together.
template <typename Tile, size_t kPanels, size_t kTokens>
inline void multiply_panels(const MatmulArguments& arguments, const Q8Row& layout, size_t panel,
                            size_t apart, size_t token, size_t count) {
  if constexpr (kTokens > 1) {
    if (count <= kTokens / 2) {
      return multiply_panels<Tile, kPanels, kTokens / 2>(arguments, layout, panel, apart, token,
                                                         count);
    }
  }
  constexpr size_t kTileBlocks = Tile::kSteps * Tile::kStepBlocks;
  constexpr size_t kTurnTiles = kPanels > 1 && kTileBlocks == 1 ? kTurnBlocks : 1;
  const size_t tile_count = arguments.matrix.columns / (kTileBlocks * kQ8BlockElements);
  const size_t panel_stride = tile_count * Tile::kTileBytes;
  const size_t stream_stride = apart * panel_stride;
  const std::byte* tiles = arguments.matrix.panels + panel * panel_stride;
  const Rows<kTokens> rows = rows_from<kTokens>(arguments, layout, token, count);
  F32x16 sums[kPanels][kTokens];
  for (auto& panel_sums : sums) {
    for (F32x16& sum : panel_sums) sum = zero();
  }
  for (size_t tile = 0; tile < tile_count; tile += kTurnTiles) {
    size_t end = tile + kTurnTiles < tile_count ? tile + kTurnTiles : tile_count;
    // If GCC 12 knows that a turn is one tile, it keeps the sums of all panels in registers, of
    // which there are too few: Q4_K with 8 tokens is then read at 13 GB/s, not at 20.
    if constexpr (kPanels > 1) asm volatile("" : "+r"(end));
    typename Tile::Scales scales[kPanels];
    for (size_t p = 0; p < kPanels; ++p) scales[p] = Tile::read_scales(tiles + p * stream_stride);
    for (size_t step = 0; step < Tile::kSteps; ++step) {
#pragma GCC unroll 2
      for (size_t p = 0; p < kPanels; ++p) {
        F32x16 local[1][kTokens];
#pragma GCC unroll 8
        for (size_t t = 0; t < kTokens; ++t) local[0][t] = sums[p][t];
        const std::byte* packed = tiles + p * stream_stride;
        for (size_t i = tile; i < end; ++i) {
          each_block<Tile>(packed, scales[p], step,
                           [&] [[gnu::always_inline]] (const auto& block, size_t place) {
                             if constexpr (kPanels > 1) {
                               prefetch_share<Tile, kFirstCache>(packed, kStreamPrefetchBytes<Tile>,
                                                                 place);
                             } else if constexpr (kTokens > 1 || kPrefetchesForOneToken<Tile>) {
                               prefetch_share<Tile, kSecondCache>(packed, kPrefetchBytes, place);
                             }
                             multiply_block<Tile>(block, rows, i * kTileBlocks + place, local);
                           });
          packed += Tile::kTileBytes;
        }
#pragma GCC unroll 8
        for (size_t t = 0; t < kTokens; ++t) sums[p][t] = local[0][t];
      }
    }
    tiles += (end - tile) * Tile::kTileBytes;
  }
  for (size_t p = 0; p < kPanels; ++p) {
    for (size_t t = 0; t < kTokens; ++t) {
      if (t < count) store_rows(arguments, panel + p * apart, token + t, sums[p][t]);
    }
  }
}

// Panels `panel` and `panel` + `apart` for `count` tokens from `token` on, at most kTokens: each
// group of activations is read once for both.
template <typename Tile, size_t kTokens>
[[gnu::flatten]] inline void multiply_side_by_side(const MatmulArguments& arguments,
                                                   const Q8Row& layout, size_t panel, size_t apart,
                                                   size_t token, size_t count) {
  if constexpr (kTokens > kSideBySideTokensLeast + 1) {
    if (count <= kTokens - 2) {
      return multiply_side_by_side<Tile, kTokens - 2>(arguments, layout, panel, apart, token,
                                                      count);
    }
  }
  constexpr size_t kTileBlocks = Tile::kSteps * Tile::kStepBlocks;
  const size_t tile_count = arguments.matrix.columns / (kTileBlocks * kQ8BlockElements);
  const size_t panel_stride = tile_count * Tile::kTileBytes;
  const std::byte* tiles[] = {arguments.matrix.panels + panel * panel_stride,
                              arguments.matrix.panels + (panel + apart) * panel_stride};
  const Rows<kTokens> rows = rows_from<kTokens>(arguments, layout, token, count);
  F32x16 sums[2][kTokens];
  for (auto& panel_sums : sums) {
    for (F32x16& sum : panel_sums) sum = zero();
  }
  for (size_t tile = 0; tile < tile_count; ++tile) {
    const typename Tile::Scales scales[] = {Tile::read_scales(tiles[0]),
                                            Tile::read_scales(tiles[1])};
    for (size_t step = 0; step < Tile::kSteps; ++step) {
      each_place<Tile>([&]<size_t kBlock> [[gnu::always_inline]] () {
        const size_t place = step * Tile::kStepBlocks + kBlock;
        for (const std::byte* packed : tiles) {
          prefetch_share<Tile, kFirstCache>(packed, kStreamPrefetchBytes<Tile>, place);
        }
        // Unpacked anew for each group, of which the compiler leaves what the group is made of:
        // two whole blocks and their sums are too many for the registers.
        const auto block_of = [&] [[gnu::always_inline]] (size_t p) {
          return Tile::template unpack<kBlock>(tiles[p], scales[p], step);
        };
        multiply_blocks<Tile>(block_of, rows, tile * kTileBlocks + place, sums);
      });
    }
    for (const std::byte*& packed : tiles) packed += Tile::kTileBytes;
  }
  for (size_t p = 0; p < 2; ++p) {
    for (size_t t = 0; t < kTokens; ++t) {
      if (t < count) store_rows(arguments, panel + p * apart, token + t, sums[p][t]);
    }
  }
}

// Panels `panel` and, with kPanels 2, `panel` + `apart` for all tokens, kTokenTile of them at a
// time.
template <typename Tile, size_t kPanels>
inline void multiply_all_tokens(const MatmulArguments& arguments, const Q8Row& layout, size_t panel,
                                size_t apart) {
  constexpr bool kBoth = kPanels == 2 && kSideBySide<Tile>;
  for (size_t token = 0; token < arguments.token_count; token += kTokenTile) {
    const size_t left = arguments.token_count - token;
    const size_t count = left < kTokenTile ? left : kTokenTile;
    if constexpr (kBoth) {
      if (count >= kSideBySideTokensLeast) {
        multiply_side_by_side<Tile, kTokenTile>(arguments, layout, panel, apart, token, count);
        continue;
      }
    }
    constexpr size_t kTokens = kBoth ? kSideBySideTokensLeast - 1 : kTokenTile;
    multiply_panels<Tile, kPanels, kTokens>(arguments, layout, panel, apart, token, count);
  }
}

}  // namespace
}  // namespace lockstep
