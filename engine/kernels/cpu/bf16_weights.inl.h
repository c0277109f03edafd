// How the weights of each format become pairs of columns, ready to be rounded to bf16: 16 rows' f32
// values, the very ones that unpack_row() gives, a quantized format's zeros all positive. Written
// over the small vector types, for the products with bf16 activations; one struct per format:
//
//   kParts       numbers that stand for a weight: their sum
//   kUnitBlocks  blocks of 32 columns that are unpacked together
//   unpack(matrix, panel, begin, end, store, done)
//                blocks [begin, end) of a panel's rows, `begin` a multiple of kUnitBlocks. Calls
//                store(index, pair, first, second) with columns 2 pair and 2 pair + 1 of a block,
//                the pairs in order, and done(index) after a block's last. `index` counts a block's
//                parts, then blocks, from 0. Columns beyond the last are zero.
//
// None of these values, nor any on the way to them, is below the normal numbers but those that a
// BF16 holds (all else are integers times 2^-24): so the processor may take such numbers for zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/tiles.inl.h"
#include "engine/kernels/packed_matrix.h"

namespace lockstep {
namespace {

constexpr size_t kPairBlock = 32;  // columns
constexpr size_t kBlockPairs = kPairBlock / 2;

// Byte kByte of each lane as the integer that the format means.
template <typename Tile, unsigned kByte>
inline F32x16 quant(Bytes bytes) {
  constexpr int kOffset = Tile::kOffsetBits == 0 ? 0 : 1 << Tile::kOffsetBits;
  if constexpr (Tile::kWidest == 15) {
    return nibble_to_float<kByte, kOffset>(bytes);
  } else if constexpr (Tile::kWidest == 0 && kOffset == 0) {
    return to_float(signed_byte<kByte>(bytes));
  } else {
    return to_float(sub(unsigned_byte<kByte>(bytes), broadcast_int(kOffset)));
  }
}

// Products of scale and quant are exact, so that this is rounded as unpack_row() rounds it. `less`
// is not -0, and so neither is the weight.
template <typename Tile, unsigned kByte>
inline F32x16 weight(Bytes bytes, F32x16 scale, F32x16 less) {
  return fma(scale, quant<Tile, kByte>(bytes), less);
}

template <typename Tile>
struct QuantizedWeights {
  static constexpr size_t kParts = 1;
  static constexpr size_t kUnitBlocks = Tile::kSteps * Tile::kStepBlocks;

  template <typename Store, typename Done>
  [[gnu::always_inline]] static void unpack(const PackedMatrix& matrix, size_t panel, size_t begin,
                                            size_t end, Store store, Done done) {
    constexpr size_t kAheadBytes = 4096;
    const auto unpack_block = [&] [[gnu::always_inline]] (const std::byte* tile,
                                                          const BlockOf<Tile>& block, size_t place,
                                                          size_t index) {
      prefetch_share<Tile, kFirstCache>(tile, kAheadBytes, place);
      const HalfScales first = scales_of<0>(block);
      const HalfScales second = scales_of<1>(block);
#pragma GCC unroll kUnrolledGroups
      for (size_t group = 0; group < kGroups; ++group) {
        const Bytes bytes = block.weights[group];
        const HalfScales& own = Tile::kHalves && group >= kGroups / 2 ? second : first;
        store(index, 2 * group, weight<Tile, 0>(bytes, own.scale, own.less),
              weight<Tile, 1>(bytes, own.scale, own.less));
        store(index, 2 * group + 1, weight<Tile, 2>(bytes, own.scale, own.less),
              weight<Tile, 3>(bytes, own.scale, own.less));
      }
      done(index);
    };
    each_panel_block<Tile>(matrix, panel, begin, end, unpack_block);
  }

 private:
  // The factor of 16 columns, and the summand that follows it.
  struct HalfScales {
    F32x16 scale;
    F32x16 less;
  };
  // kHalf: the first half of a block or, where each has its own, the second.
  template <int kHalf>
  [[gnu::always_inline]] static HalfScales scales_of(const BlockOf<Tile>& block) {
    const F32x16 scale = roundable(Tile::kHalves && kHalf == 1 ? block.second : block.scale);
    if constexpr (Tile::kMinimums && Tile::kHalves) {
      const F32x16 minimum = kHalf == 0 ? block.first_minimum : block.second_minimum;
      return {scale, sub(zero(), roundable(minimum))};
    } else if constexpr (Tile::kMinimums) {
      return {scale, sub(zero(), roundable(block.second))};
    } else {
      return {scale, zero()};
    }
  }
};

// Column `column` of a panel of a format of 16 bits, 0 beyond the last.
template <F32x16 (*kRead)(const uint16_t*)>
[[gnu::always_inline]] inline F32x16 read_column(const PackedMatrix& matrix, size_t panel,
                                                 size_t column) {
  if (column >= matrix.columns) return zero();
  const auto* columns = reinterpret_cast<const uint16_t*>(matrix.panels);
  return kRead(columns + (panel * matrix.columns + column) * kPanelRows);
}

struct Bf16Weights {
  static constexpr size_t kParts = 1;
  static constexpr size_t kUnitBlocks = 1;

  template <typename Store, typename Done>
  [[gnu::always_inline]] static void unpack(const PackedMatrix& matrix, size_t panel, size_t begin,
                                            size_t end, Store store, Done done) {
    for (size_t block = begin; block < end; ++block) {
      for (size_t pair = 0; pair < kBlockPairs; ++pair) {
        const size_t column = block * kPairBlock + 2 * pair;
        store(block - begin, pair, read_column<load_bf16>(matrix, panel, column),
              read_column<load_bf16>(matrix, panel, column + 1));
      }
      done(block - begin);
    }
  }
};

// A half has 11 significant bits: the 8 of a bf16, and what is left has 3 or fewer.
struct F16Weights {
  static constexpr size_t kParts = 2;
  static constexpr size_t kUnitBlocks = 1;

  template <typename Store, typename Done>
  [[gnu::always_inline]] static void unpack(const PackedMatrix& matrix, size_t panel, size_t begin,
                                            size_t end, Store store, Done done) {
    for (size_t block = begin; block < end; ++block) {
      const size_t index = (block - begin) * kParts;
      for (size_t pair = 0; pair < kBlockPairs; ++pair) {
        const size_t column = block * kPairBlock + 2 * pair;
        const F32x16 even = roundable(read_column<load_half>(matrix, panel, column));
        const F32x16 odd = roundable(read_column<load_half>(matrix, panel, column + 1));
        const F32x16 even_high = round_bf16(even);
        const F32x16 odd_high = round_bf16(odd);
        store(index, pair, even_high, odd_high);
        store(index + 1, pair, sub(even, even_high), sub(odd, odd_high));
      }
      done(index);
      done(index + 1);
    }
  }
};

// A format is unpacked in one of three ways.
template <typename F, template <typename Tile> typename Quantized, typename OfF16, typename OfBf16>
struct UnpackingOf {
  using Type = Quantized<TileOf<F>>;
};
template <CodedFormat F, template <typename Tile> typename Quantized, typename OfF16,
          typename OfBf16>
struct UnpackingOf<F, Quantized, OfF16, OfBf16> {
  using Type = Quantized<GeneralTile<true>>;
};
template <template <typename Tile> typename Quantized, typename OfF16, typename OfBf16>
struct UnpackingOf<F16, Quantized, OfF16, OfBf16> {
  using Type = OfF16;
};
template <template <typename Tile> typename Quantized, typename OfF16, typename OfBf16>
struct UnpackingOf<Bf16, Quantized, OfF16, OfBf16> {
  using Type = OfBf16;
};

// A format's weights as f32 values.
template <typename F>
using WeightsOfFormat = typename UnpackingOf<F, QuantizedWeights, F16Weights, Bf16Weights>::Type;

}  // namespace
}  // namespace lockstep
