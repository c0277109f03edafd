// Blocks of 32 columns of any format of codes, unpacked by a function that is looked up by the
// format: so one loop, compiled once, multiplies the weights of all of them. A block's weights are
// as offset_signed() gives them, and each half of it has a scale and, with kWithMinimums, a
// minimum, which is zero in formats that have none.
#pragma once

#include <cstddef>
#include <type_traits>

#include "engine/kernels/cpu/coded_tile.inl.h"
#include "engine/kernels/cpu/tile_walk.inl.h"
#include "engine/kernels/packed_matrix.h"

namespace lockstep {
namespace {

// A multiple of every format's tile.
constexpr size_t kGeneralBlocks = 8;

template <bool kWithMinimums>
struct GeneralTile {
  static constexpr bool kIsGeneral = true;
  static constexpr size_t kTileBytes = 0;  // differ
  static constexpr size_t kSteps = kGeneralBlocks;
  static constexpr size_t kStepBlocks = 1;
  static constexpr int kWidest = 0;
  static constexpr unsigned kOffsetBits = kSignedOffsetBits;
  static constexpr bool kMinimums = kWithMinimums;
  static constexpr bool kHalves = true;
  using Block = std::conditional_t<kWithMinimums, MinimumsBlock, lockstep::Block>;
};

// How far ahead of unpacking bytes are asked for: as QuantizedOperands does, not measured.
constexpr size_t kGeneralAheadBytes = 2048;

// Blocks [begin, end) of a panel's rows, `begin` a multiple of kGeneralBlocks, at most that many.
template <bool kWithMinimums>
using UnpackBlocks = void (*)(const PackedMatrix& matrix, size_t panel, size_t begin, size_t end,
                              typename GeneralTile<kWithMinimums>::Block* blocks);

template <CodeTraits kCodes, bool kWithMinimums>
[[gnu::noinline]] void unpack_blocks(const PackedMatrix& matrix, size_t panel, size_t begin,
                                     size_t end,
                                     typename GeneralTile<kWithMinimums>::Block* blocks) {
  using Tile = CodedTile<kCodes, /*kAsSigned=*/true>;
  each_panel_block<Tile>(
      matrix, panel, begin, end,
      [&] [[gnu::always_inline]] (const std::byte* tile, const typename Tile::Block& block,
                                  size_t place, size_t index) {
        prefetch_share<Tile, kFirstCache>(tile, kGeneralAheadBytes, place);
        auto& general = blocks[index];
        static_cast<Block&>(general) = block;
        if constexpr (!Tile::kHalves) general.second = block.scale;
        if constexpr (Tile::kMinimums) {
          general = block;
        } else if constexpr (kWithMinimums) {
          general.first_minimum = zero();
          general.second_minimum = zero();
        }
      });
}

// By Format; none for those that are no codes or, without minimums, have some.
template <bool kWithMinimums>
constexpr auto kUnpackBlocks =
    each_format<UnpackBlocks<kWithMinimums>>([]<typename F>() -> UnpackBlocks<kWithMinimums> {
      if constexpr (CodedFormat<F>) {
        if constexpr (kWithMinimums || !F::kCodes.has_minimums()) {
          return unpack_blocks<F::kCodes, kWithMinimums>;
        }
      }
      return nullptr;
    });

template <typename Tile>
concept General = requires {
  Tile::kIsGeneral;
};

// As each_panel_block() of other tiles.
template <General Tile, typename Visit>
[[gnu::always_inline]] inline void each_panel_block(const PackedMatrix& matrix, size_t panel,
                                                    size_t begin, size_t end, Visit visit) {
  const auto unpack = kUnpackBlocks<Tile::kMinimums>[static_cast<size_t>(matrix.format)];
  typename Tile::Block blocks[kGeneralBlocks];
  for (size_t first = begin; first < end; first += kGeneralBlocks) {
    const size_t last = first + kGeneralBlocks < end ? first + kGeneralBlocks : end;
    unpack(matrix, panel, first, last, blocks);
    for (size_t i = 0; i < last - first; ++i) visit(nullptr, blocks[i], i, first - begin + i);
  }
}

}  // namespace
}  // namespace lockstep
