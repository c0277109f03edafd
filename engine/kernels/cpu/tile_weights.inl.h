// How the weights of each format become second operands of a matrix unit: bf16 pairs of columns,
// rounded from the very f32 values that unpack_row() gives, a quantized format's zeros all
// positive. Written over the small vector types; one struct per format:
//
//   kParts       numbers that stand for a weight: their sum
//   kUnitBlocks  blocks of 32 columns that are unpacked together
//   unpack(matrix, panel, begin, end, store, done)
//                blocks [begin, end) of a panel's rows, `begin` a multiple of kUnitBlocks. Calls
//                store(index, pair, ...), where store_pairs(p, ...) stores columns 2 pair and
//                2 pair + 1 of a block, the pairs of a part in any order, and done(index) after a
//                block's last. `index` counts a block's parts, then blocks, from 0. Columns beyond
//                the last are zero.
//
// None of these values, nor any on the way to them, is below the normal numbers but those that a
// BF16 holds (all else are integers times 2^-24): so the processor may take such numbers for zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/bf16_weights.inl.h"

namespace lockstep {
namespace {

// How far ahead of unpacking bytes are asked for. 2 KiB measured best on Granite Rapids
// (against 1, 4 and 8): one core then reads F16 at 13.3 GB/s instead of 6.4 without, BF16 at 15.3
// instead of 13.6, Q8_0 at 11.1 instead of 7.7, Q4_0 at 8.6 instead of 6.9.
constexpr size_t kOperandsAheadBytes = 2048;

// A weight as a byte u comes as the float B + u, of which B is taken in the same operation that
// multiplies it by its scale, where no bit is lost by that:
//   scale * (u - offset) = fma(scale, B + u, -scale * (B + offset))
//   scale * u - minimum = fma(scale, B + u, -(scale * B + minimum))
// In the first the last operand is always exact: scales have at most 11 bits, those of Q6_K 18, and
// B + offset at most 13 and 3; but of general tiles, whose scales may be long, the
// offset is taken off first. In the second it mostly is. Products of scale and weight are exact
// always, so that taking off a minimum rounds once in either way.
template <typename Tile>
struct QuantizedOperands {
  static constexpr size_t kParts = 1;
  static constexpr size_t kUnitBlocks = Tile::kSteps * Tile::kStepBlocks;

  template <typename Store, typename Done>
  [[gnu::always_inline]] static void unpack(const PackedMatrix& matrix, size_t panel, size_t begin,
                                            size_t end, Store store, Done done) {
    const auto unpack_block = [&] [[gnu::always_inline]] (const std::byte* tile,
                                                          const BlockOf<Tile>& block, size_t place,
                                                          size_t index) {
      prefetch_share<Tile, kFirstCache>(tile, kOperandsAheadBytes, place);
      const auto store_pair = [&] [[gnu::always_inline]] (size_t pair, const ColumnPair& columns) {
        store(index, pair, columns);
      };
      if constexpr (General<Tile>) {
        with_both<0, kGroups / 2>(block, block.scale, block.first_minimum, store_pair);
        with_both<kGroups / 2, kGroups>(block, block.second, block.second_minimum, store_pair);
      } else if constexpr (Tile::kMinimums) {
        with_minimum(block, store_pair);
      } else {
        with_offset<0, Tile::kHalves ? kGroups / 2 : kGroups>(block, block.scale, store_pair);
        if constexpr (Tile::kHalves) {
          with_offset<kGroups / 2, kGroups>(block, block.second, store_pair);
        }
      }
      done(index);
    };
    each_panel_block<Tile>(matrix, panel, begin, end, unpack_block);
  }

 private:
  static constexpr bool kWide = Tile::kWidest == 0;
  static constexpr float kBase = kFloatBase<kWide>;
  static constexpr float kOffset = kWide ? 128.0F : 1U << Tile::kOffsetBits;

  // Groups [kBegin, kEnd) of a block.
  template <size_t kBegin, size_t kEnd, typename StorePair>
  [[gnu::always_inline]] static void with_offset(const Block& block, F32x16 scale,
                                                 StorePair store_pair) {
    const ColumnPair scales = twice(scale);
    if (none_infinite(scale)) [[likely]] {
      const ColumnPair added = mul(scales, broadcast(-(kBase + kOffset)));
      each_pair<kBegin, kEnd>(block, [&] [[gnu::always_inline]] (size_t pair, ColumnPair raised) {
        store_pair(pair, fma(scales, raised, added));
      });
    } else {
      each_pair<kBegin, kEnd>(block, [&] [[gnu::always_inline]] (size_t pair, ColumnPair raised) {
        const ColumnPair quants = sub(raised, broadcast(kBase + kOffset));
        store_pair(pair, fma(scales, quants, twice(zero())));
      });
    }
  }

  template <typename StorePair>
  [[gnu::always_inline]] static void with_minimum(const Block& block, StorePair store_pair) {
    const ColumnPair scales = twice(block.scale);
    const F32x16 base = mul(block.scale, broadcast(kBase));
    if (sums_are_exact(base, block.second)) [[likely]] {
      const ColumnPair added = twice(sub(zero(), add(base, block.second)));
      each_pair<0, kGroups>(block, [&] [[gnu::always_inline]] (size_t pair, ColumnPair raised) {
        store_pair(pair, fma(scales, raised, added));
      });
    } else {
      const ColumnPair added = twice(sub(zero(), block.second));
      each_pair<0, kGroups>(block, [&] [[gnu::always_inline]] (size_t pair, ColumnPair raised) {
        store_pair(pair, fma(scales, sub(raised, broadcast(kBase)), added));
      });
    }
  }

  template <size_t kBegin, size_t kEnd, typename StorePair>
  [[gnu::always_inline]] static void with_both(const Block& block, F32x16 scale, F32x16 minimum,
                                               StorePair store_pair) {
    const ColumnPair scales = twice(scale);
    const ColumnPair added = twice(sub(zero(), minimum));
    each_pair<kBegin, kEnd>(block, [&] [[gnu::always_inline]] (size_t pair, ColumnPair raised) {
      store_pair(pair, fma(scales, sub(raised, broadcast(kBase + kOffset)), added));
    });
  }

  template <size_t kBegin, size_t kEnd, typename Take>
  [[gnu::always_inline]] static void each_pair(const Block& block, Take take) {
#pragma GCC unroll kUnrolledGroups
    for (size_t group = kBegin; group < kEnd; ++group) {
      take(2 * group, spread_pair<0, kWide>(block.weights[group]));
      take(2 * group + 1, spread_pair<1, kWide>(block.weights[group]));
    }
  }
};

// Calls take(index, pair, columns) for the pairs of blocks [begin, end) of a format of 16 bits,
// each of kParts parts, and done(index) for a block's parts after its last pair.
template <size_t kParts, typename Take, typename Done>
[[gnu::always_inline]] inline void each_pair_of_halves(const PackedMatrix& matrix, size_t panel,
                                                       size_t begin, size_t end, Take take,
                                                       Done done) {
  constexpr size_t kPairHalves = 2 * kPanelRows;
  const auto* panels = reinterpret_cast<const uint16_t*>(matrix.panels);
  for (size_t block = begin; block < end; ++block) {
    const size_t index = (block - begin) * kParts;
    const size_t column = block * kPairBlock;
    const uint16_t* columns = panels + (panel * matrix.columns + column) * kPanelRows;
    const size_t left = matrix.columns - column;
    if (left >= kPairBlock) [[likely]] {
      // Unrolled, this is faster from a cache, but from memory one core of a Granite Rapids reads
      // BF16 at 15 GB/s instead of 18, F16 at 14 instead of 16.
#pragma GCC unroll 1
      for (size_t pair = 0; pair < kBlockPairs; ++pair) {
        const uint16_t* two = columns + pair * kPairHalves;
        prefetch_bytes<kPairHalves * sizeof(uint16_t), kFirstCache>(
            reinterpret_cast<const std::byte*>(two) + kOperandsAheadBytes);
        take(index, pair, load_two_columns(two));
      }
    } else {
      for (size_t pair = 0; pair < kBlockPairs; ++pair) {
        const uint16_t* two = columns + pair * kPairHalves;
        take(index, pair,
             2 * pair + 1 < left ? load_two_columns(two)
             : 2 * pair < left   ? load_one_column(two)
                                 : no_columns());
      }
    }
    for (size_t part = 0; part < kParts; ++part) done(index + part);
  }
}

struct Bf16Operands {
  static constexpr size_t kParts = 1;
  static constexpr size_t kUnitBlocks = 1;

  template <typename Store, typename Done>
  [[gnu::always_inline]] static void unpack(const PackedMatrix& matrix, size_t panel, size_t begin,
                                            size_t end, Store store, Done done) {
    const auto take = [&] [[gnu::always_inline]] (size_t index, size_t pair,
                                                  const HalfColumns& columns) {
      store(index, pair, interleave(columns));
    };
    each_pair_of_halves<kParts>(matrix, panel, begin, end, take, done);
  }
};

// A half has 11 significant bits: the 8 of a bf16, and what is left has 3 or fewer.
struct F16Operands {
  static constexpr size_t kParts = 2;
  static constexpr size_t kUnitBlocks = 1;

  template <typename Store, typename Done>
  [[gnu::always_inline]] static void unpack(const PackedMatrix& matrix, size_t panel, size_t begin,
                                            size_t end, Store store, Done done) {
    const auto take = [&] [[gnu::always_inline]] (size_t index, size_t pair,
                                                  const HalfColumns& columns) {
      const SplitPairs parts = split_halves(columns);
      store(index, pair, parts.high);
      store(index + 1, pair, parts.rest);
    };
    each_pair_of_halves<kParts>(matrix, panel, begin, end, take, done);
  }
};

// A format's weights as pairs of bf16.
template <typename F>
using OperandsOfFormat =
    typename UnpackingOf<F, QuantizedOperands, F16Operands, Bf16Operands>::Type;

}  // namespace
}  // namespace lockstep
