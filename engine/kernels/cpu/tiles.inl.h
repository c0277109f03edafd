// How each quantized format's tile (see packed_matrix.cpp) becomes blocks of 32 columns that one
// loop multiplies. Written over the small vector types; one struct per format:
//
//   kTileBytes     bytes of a tile
//   kSteps         a tile is taken in steps; blocks of one step share bytes
//   kStepBlocks    blocks of 32 columns per step
//   kWidest        the greatest weight as an unsigned byte; 0: signed bytes
//   kOffsetBits    the weights as bytes are 2^kOffsetBits too large; 0: they are not
//   kMinimums      `second` is a minimum, which is multiplied by the activation's scaled_sum
//   kHalves        `scale` is for the first 16 columns, `second` for the others; with kMinimums as
//                  well, the block is a MinimumsBlock
//   Scales         what the blocks of a tile share, read once by read_scales(tile)
//   unpack<i>(tile, scales, step)    block i of the step
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "engine/kernels/cpu/coded_tile.inl.h"
#include "engine/kernels/cpu/general_tile.inl.h"
#include "engine/kernels/cpu/tile_parts.inl.h"
#include "engine/kernels/cpu/tile_walk.inl.h"
#include "engine/kernels/packed_matrix.h"
#include "engine/tensor/formats.h"

namespace lockstep {
namespace {

// Adds bit 4 of each weight from the plane whose bit g of byte b is for column 4g + b.
inline void add_high_bits(Bytes plane, Block& block) {
  constexpr uint32_t kBit = 0x10101010U;
  block.weights[0] = bit_or(block.weights[0], bit_and(shift_left<4>(plane), kBit));
  block.weights[1] = bit_or(block.weights[1], bit_and(shift_left<3>(plane), kBit));
  block.weights[2] = bit_or(block.weights[2], bit_and(shift_left<2>(plane), kBit));
  block.weights[3] = bit_or(block.weights[3], bit_and(shift_left<1>(plane), kBit));
  block.weights[4] = bit_or(block.weights[4], bit_and(plane, kBit));
  block.weights[5] = bit_or(block.weights[5], bit_and(shift_right<1>(plane), kBit));
  block.weights[6] = bit_or(block.weights[6], bit_and(shift_right<2>(plane), kBit));
  block.weights[7] = bit_or(block.weights[7], bit_and(shift_right<3>(plane), kBit));
}

struct Q8_0Tile {
  static constexpr size_t kTileBytes = 34 * 16;
  static constexpr size_t kSteps = 1;
  static constexpr size_t kStepBlocks = 1;
  static constexpr int kWidest = 0;
  static constexpr unsigned kOffsetBits = kSignedOffsetBits;
  static constexpr bool kMinimums = false;
  static constexpr bool kHalves = false;
  using Scales = NoScales;

  static Scales read_scales(const std::byte*) { return {}; }
  template <size_t>
  static Block unpack(const std::byte* tile, const Scales&, size_t) {
    Block block;
#pragma GCC unroll 8
    for (size_t group = 0; group < kGroups; ++group) {
      block.weights[group] = offset_signed(load_bytes(tile + group * kGroupBytes));
    }
    block.scale = load_scales(tile + kGroups * kGroupBytes);
    block.second = zero();
    return block;
  }
};

// The formats of 32 columns in nibbles: with a fifth bit or without, and with a minimum in place of
// an offset or without.
template <bool kFifthBits, bool kWithMinimums>
struct NibbleTile {
  static constexpr size_t kScalesAt = (kFifthBits ? 5 : 4) * kGroupBytes;
  static constexpr size_t kTileBytes = kScalesAt + (kWithMinimums ? 2 : 1) * kRowScaleBytes;
  static constexpr size_t kSteps = 1;
  static constexpr size_t kStepBlocks = 1;
  static constexpr int kWidest = kFifthBits ? 31 : 15;
  static constexpr unsigned kOffsetBits = kWithMinimums ? 0 : kFifthBits ? 4 : 3;
  static constexpr bool kMinimums = kWithMinimums;
  static constexpr bool kHalves = false;
  using Scales = NoScales;

  static Scales read_scales(const std::byte*) { return {}; }
  template <size_t>
  static Block unpack(const std::byte* tile, const Scales&, size_t) {
    Block block;
    unpack_nibbles(tile, block);
    if constexpr (kFifthBits) add_high_bits(load_bytes(tile + 4 * kGroupBytes), block);
    block.scale = load_scales(tile + kScalesAt);
    if constexpr (kMinimums) {
      block.second = mul(broadcast(-1.0F), load_scales(tile + kScalesAt + kRowScaleBytes));
    } else {
      block.second = zero();
    }
    return block;
  }
};
using Q4_0Tile = NibbleTile<false, false>;
using Q4_1Tile = NibbleTile<false, true>;
using Q5_0Tile = NibbleTile<true, false>;
using Q5_1Tile = NibbleTile<true, true>;

// The scales of Q4_K and Q5_K: per block of 32 columns d * sc and dmin * m, each rounded once.
struct SuperBlockScales {
  F32x16 scale[8];
  F32x16 minimum[8];
};

// The file's 12 bytes: 0 to 3 the low 6 bits of sc 0 to 3, 4 to 7 the same of m 0 to 3; 8 to 11 the
// low 4 bits of sc 4 to 7 and, above them, of m 4 to 7, whose upper 2 bits are on top of bytes 0 to
// 7. The halves d and dmin follow.
inline SuperBlockScales read_super_block_scales(const std::byte* p) {
  constexpr uint32_t kSixBits = 0x3F3F3F3FU;
  constexpr uint32_t kUpperBits = 0x30303030U;
  const Bytes first = load_bytes(p);
  const Bytes second = load_bytes(p + kGroupBytes);
  const Bytes third = load_bytes(p + 2 * kGroupBytes);
  const F32x16 d = load_scales(p + 3 * kGroupBytes);
  const F32x16 d_minimum = load_scales(p + 3 * kGroupBytes + kRowScaleBytes);
  SuperBlockScales result;
  scale_bytes(d, bit_and(first, kSixBits), result.scale);
  scale_bytes(d_minimum, bit_and(second, kSixBits), result.minimum);
  scale_bytes(d, bit_or(bit_and(third, kNibbles), bit_and(shift_right<2>(first), kUpperBits)),
              result.scale + 4);
  scale_bytes(
      d_minimum,
      bit_or(bit_and(shift_right<4>(third), kNibbles), bit_and(shift_right<2>(second), kUpperBits)),
      result.minimum + 4);
  return result;
}

// The bytes of the packed scales and minimums, d and dmin.
constexpr size_t kSuperBlockScaleBytes = 4 * kGroupBytes;

struct Q4_KTile {
  static constexpr size_t kTileBytes = 144 * 16;
  static constexpr size_t kSteps = 4;
  static constexpr size_t kStepBlocks = 2;
  static constexpr int kWidest = 15;
  static constexpr unsigned kOffsetBits = 0;
  static constexpr bool kMinimums = true;
  static constexpr bool kHalves = false;
  using Scales = SuperBlockScales;

  static Scales read_scales(const std::byte* tile) { return read_super_block_scales(tile); }
  template <size_t kBlock>
  static Block unpack(const std::byte* tile, const Scales& scales, size_t step) {
    const std::byte* quants = tile + kSuperBlockScaleBytes + step * kGroups * kGroupBytes;
    Block block;
#pragma GCC unroll 8
    for (size_t group = 0; group < kGroups; ++group) {
      const Bytes both = load_bytes(quants + group * kGroupBytes);
      block.weights[group] = bit_and(shift_right<4 * kBlock>(both), kNibbles);
    }
    block.scale = scales.scale[2 * step + kBlock];
    block.second = scales.minimum[2 * step + kBlock];
    return block;
  }
};

struct Q5_KTile {
  static constexpr size_t kTileBytes = 176 * 16;
  static constexpr size_t kSteps = 4;
  static constexpr size_t kStepBlocks = 2;
  static constexpr int kWidest = 31;
  static constexpr unsigned kOffsetBits = 0;
  static constexpr bool kMinimums = true;
  static constexpr bool kHalves = false;
  using Scales = SuperBlockScales;

  static Scales read_scales(const std::byte* tile) { return read_super_block_scales(tile); }
  template <size_t kBlock>
  static Block unpack(const std::byte* tile, const Scales& scales, size_t step) {
    const std::byte* bits = tile + kSuperBlockScaleBytes;
    const std::byte* quants = bits + (1 + step) * kGroups * kGroupBytes;
    Block block;
#pragma GCC unroll 8
    for (size_t group = 0; group < kGroups; ++group) {
      const Bytes both = load_bytes(quants + group * kGroupBytes);
      const Bytes high = shift_right(load_bytes(bits + group * kGroupBytes), 2 * step);
      block.weights[group] = bit_or(bit_and(shift_right<4 * kBlock>(both), kNibbles),
                                    bit_and(shift_left<4 - kBlock>(high), 0x10101010U));
    }
    block.scale = scales.scale[2 * step + kBlock];
    block.second = scales.minimum[2 * step + kBlock];
    return block;
  }
};

struct Q6_KTile {
  static constexpr size_t kTileBytes = 210 * 16;
  static constexpr size_t kSteps = 2;
  static constexpr size_t kStepBlocks = 4;
  static constexpr int kWidest = 63;
  static constexpr unsigned kOffsetBits = 5;
  static constexpr bool kMinimums = false;
  static constexpr bool kHalves = true;
  // d * sc of each half block of 16 columns, rounded once.
  struct Scales {
    F32x16 half[16];
  };

  static Scales read_scales(const std::byte* tile) {
    const F32x16 d = load_scales(tile + 52 * kGroupBytes);
    Scales scales;
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) {
      const Bytes bytes = load_bytes(tile + i * kGroupBytes);
      scales.half[4 * i] = mul(d, to_float(signed_byte<0>(bytes)));
      scales.half[4 * i + 1] = mul(d, to_float(signed_byte<1>(bytes)));
      scales.half[4 * i + 2] = mul(d, to_float(signed_byte<2>(bytes)));
      scales.half[4 * i + 3] = mul(d, to_float(signed_byte<3>(bytes)));
    }
    return scales;
  }
  template <size_t kBlock>
  static Block unpack(const std::byte* tile, const Scales& scales, size_t step) {
    constexpr uint32_t kPairs = 0x30303030U;
    const std::byte* half = tile + (4 + 24 * step) * kGroupBytes;
    const std::byte* quants = half + 16 * (kBlock % 2) * kGroupBytes;
    const std::byte* bits = half + 8 * kGroupBytes;
    Block block;
#pragma GCC unroll 8
    for (size_t group = 0; group < kGroups; ++group) {
      const Bytes both = load_bytes(quants + group * kGroupBytes);
      const Bytes low = bit_and(shift_right<4 * (kBlock / 2)>(both), kNibbles);
      const Bytes pairs = load_bytes(bits + group * kGroupBytes);
      if constexpr (kBlock < 2) {
        block.weights[group] = bit_or(low, bit_and(shift_left<4 - 2 * kBlock>(pairs), kPairs));
      } else {
        block.weights[group] = bit_or(low, bit_and(shift_right<2 * kBlock - 4>(pairs), kPairs));
      }
    }
    block.scale = scales.half[2 * (4 * step + kBlock)];
    block.second = scales.half[2 * (4 * step + kBlock) + 1];
    return block;
  }
};

// The tile of a format by itself. Formats of codes that are not met often share a general one.
template <typename F>
struct TileOfFormat {
  using Type = std::conditional_t<F::kCodes.is_common, CodedTile<F::kCodes>, GeneralTile<false>>;
};
template <>
struct TileOfFormat<Q8_0> {
  using Type = Q8_0Tile;
};
template <>
struct TileOfFormat<Q4_0> {
  using Type = Q4_0Tile;
};
template <>
struct TileOfFormat<Q4_1> {
  using Type = Q4_1Tile;
};
template <>
struct TileOfFormat<Q5_0> {
  using Type = Q5_0Tile;
};
template <>
struct TileOfFormat<Q5_1> {
  using Type = Q5_1Tile;
};
template <>
struct TileOfFormat<Q4_K> {
  using Type = Q4_KTile;
};
template <>
struct TileOfFormat<Q5_K> {
  using Type = Q5_KTile;
};
template <>
struct TileOfFormat<Q6_K> {
  using Type = Q6_KTile;
};
template <typename F>
using TileOf = typename TileOfFormat<F>::Type;

}  // namespace
}  // namespace lockstep
