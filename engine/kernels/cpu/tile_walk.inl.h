// Walks over tiles, block after block; see tiles.inl.h.
#pragma once

#include <cstddef>

#include "engine/kernels/activation.h"
#include "engine/kernels/cpu/tile_parts.inl.h"
#include "engine/kernels/packed_matrix.h"

namespace lockstep {
namespace {

// A tile's blocks, where it has none of its own.
template <typename Tile>
struct BlockOfTile {
  using Type = Block;
};
template <typename Tile>
requires requires {
  typename Tile::Block;
}
struct BlockOfTile<Tile> {
  using Type = typename Tile::Block;
};
template <typename Tile>
using BlockOf = typename BlockOfTile<Tile>::Type;

// Calls visit(block, i) for each block i of a step.
template <typename Tile, size_t kBlock = 0, typename Visit>
[[gnu::always_inline]] inline void each_block(const std::byte* tile,
                                              const typename Tile::Scales& scales, size_t step,
                                              Visit visit) {
  if constexpr (kBlock < Tile::kStepBlocks) {
    visit(Tile::template unpack<kBlock>(tile, scales, step), step * Tile::kStepBlocks + kBlock);
    each_block<Tile, kBlock + 1>(tile, scales, step, visit);
  }
}

// Calls visit.operator()<i>() for each block i of a step.
template <typename Tile, size_t kBlock = 0, typename Visit>
[[gnu::always_inline]] inline void each_place(Visit visit) {
  if constexpr (kBlock < Tile::kStepBlocks) {
    visit.template operator()<kBlock>();
    each_place<Tile, kBlock + 1>(visit);
  }
}

// Caches that lines are asked for into, as __builtin_prefetch() counts them.
constexpr int kFirstCache = 3;
constexpr int kSecondCache = 2;

constexpr size_t kLineBytes = 64;  // of a cache

// Asks for the kBytes at `p`.
template <size_t kBytes, int kCache>
[[gnu::always_inline]] inline void prefetch_bytes(const std::byte* p) {
#pragma GCC unroll 16
  for (size_t line = 0; line < kBytes; line += kLineBytes) __builtin_prefetch(p + line, 0, kCache);
}

// Asks for the bytes `distance` beyond a tile: block `index`'s share of them, so that requests are
// spread over the tile's time. A prefetch beyond the matrix is harmless.
template <typename Tile, int kCache>
[[gnu::always_inline]] inline void prefetch_share(const std::byte* tile, size_t distance,
                                                  size_t index) {
  constexpr size_t kShare = Tile::kTileBytes / (Tile::kSteps * Tile::kStepBlocks);
  prefetch_bytes<kShare, kCache>(tile + distance + index * kShare);
}

// Calls visit(tile, block, place, index) for blocks [begin, end) of a panel's rows, `begin` a
// multiple of a tile's blocks: `place` counts a tile's blocks, `index` those visited.
template <typename Tile, typename Visit>
[[gnu::always_inline]] inline void each_panel_block(const PackedMatrix& matrix, size_t panel,
                                                    size_t begin, size_t end, Visit visit) {
  constexpr size_t kBlocks = Tile::kSteps * Tile::kStepBlocks;
  const size_t tiles = matrix.columns / (kBlocks * kQ8BlockElements);
  const std::byte* tile = matrix.panels + (panel * tiles + begin / kBlocks) * Tile::kTileBytes;
  for (size_t index = 0; index < end - begin; index += kBlocks) {
    const typename Tile::Scales scales = Tile::read_scales(tile);
    for (size_t step = 0; step < Tile::kSteps; ++step) {
      each_block<Tile>(tile, scales, step,
                       [&] [[gnu::always_inline]] (const auto& block, size_t place) {
                         visit(tile, block, place, index + place);
                       });
    }
    tile += Tile::kTileBytes;
  }
}

}  // namespace
}  // namespace lockstep
