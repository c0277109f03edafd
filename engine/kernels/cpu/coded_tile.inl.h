// How the tiles of formats of codes (tensor/formats/coded.h) become blocks of 32 columns: one way
// for all of them. See tiles.inl.h.
#pragma once

#include <bit>
#include <cstddef>
#include <type_traits>

#include "engine/kernels/cpu/byte_table.h"
#include "engine/kernels/cpu/tile_parts.inl.h"
#include "engine/tensor/formats.h"

namespace lockstep {
namespace {

// The scales of a block of 256 columns, by group of 16 or 32 columns.
template <size_t kCount, bool kMinimums>
struct GroupScales {
  F32x16 scale[kCount];
  F32x16 minimum[kMinimums ? kCount : 1];
};

// Formats of the same codes share it. kAsSigned: all weights become signed bytes.
template <CodeTraits kCodes, bool kAsSigned = false>
struct CodedTile {
  static constexpr bool kSmall = kCodes.is_small();
  static constexpr size_t kTileBytes = kCodes.bytes() * kPanelRows;
  static constexpr size_t kSteps = kSmall ? 1 : kCodes.bits == 4 ? 8 : 2;
  static constexpr size_t kStepBlocks = kSmall || kCodes.bits == 4 ? 1 : 4;
  // Values of at most 15 become unsigned bytes by 16, others are signed ones.
  static constexpr bool kLinear = kCodes.is_linear() && !kAsSigned;
  static constexpr bool kSigned = kAsSigned || (!kLinear && kCodes.largest() > 15);
  static constexpr unsigned kOffset = kLinear ? static_cast<unsigned>(kCodes.offset()) : 16;
  static constexpr int kWidest = kSigned ? 0 : static_cast<int>(kOffset) + kCodes.largest();
  static constexpr unsigned kOffsetBits = kSigned        ? kSignedOffsetBits
                                          : kOffset == 0 ? 0
                                                         : std::countr_zero(kOffset);
  static constexpr bool kMinimums = kCodes.has_minimums();
  static constexpr bool kHalves = kCodes.has_halves();
  static constexpr bool kSignedScales =
      kCodes.scale == CodeScale::kSigned32 || kCodes.scale == CodeScale::kSigned16;
  static constexpr size_t kGroupCount = kHalves ? 16 : 8;
  // A constant of its own: what clang 19 reads of kCodes while the program runs is 0.
  static constexpr float kUnit = kCodes.unit;
  using Scales = std::conditional_t<kSmall, NoScales, GroupScales<kGroupCount, kMinimums>>;
  using Block = std::conditional_t<kMinimums, MinimumsBlock, lockstep::Block>;

  static Scales read_scales(const std::byte* tile) {
    Scales scales;
    if constexpr (kCodes.scale == CodeScale::kHalf256) {
      const F32x16 half = load_scales(tile + kHalvesAt);
      for (F32x16& scale : scales.scale) scale = half;
    } else if constexpr (kSignedScales) {
      const F32x16 factor = mul(load_scales(tile + kHalvesAt), broadcast(kUnit));
      for (size_t i = 0; i < kGroupCount; i += 4) {
        const Bytes bytes = load_bytes(tile + i / 4 * kGroupBytes);
        scales.scale[i] = mul(factor, to_float(signed_byte<0>(bytes)));
        scales.scale[i + 1] = mul(factor, to_float(signed_byte<1>(bytes)));
        scales.scale[i + 2] = mul(factor, to_float(signed_byte<2>(bytes)));
        scales.scale[i + 3] = mul(factor, to_float(signed_byte<3>(bytes)));
      }
    } else if constexpr (kMinimums) {
      const F32x16 factor = load_scales(tile + kHalvesAt);
      const F32x16 minimum_factor = load_scales(tile + kHalvesAt + kRowScaleBytes);
      for (size_t i = 0; i < kGroupCount; i += 4) {
        const Bytes bytes = load_bytes(tile + i / 4 * kGroupBytes);
        scale_bytes(factor, bit_and(bytes, kNibbles), scales.scale + i);
        scale_bytes(minimum_factor, bit_and(shift_right<4>(bytes), kNibbles), scales.minimum + i);
      }
    }
    return scales;
  }

  template <size_t kBlock>
  static Block unpack(const std::byte* tile, const Scales& scales, size_t step) {
    Block block;
    read_codes<kBlock>(tile, step, block);
    if constexpr (!kLinear) {
#pragma GCC unroll 8
      for (size_t group = 0; group < kGroups; ++group) {
        block.weights[group] = look_up(block.weights[group], kValues);
      }
    }
    if constexpr (kCodes.scale == CodeScale::kHalf) {
      block.scale = load_scales(tile + kHalvesAt);
      block.second = zero();
    } else if constexpr (kCodes.scale == CodeScale::kExponent) {
      block.scale = load_exponents(tile + kScalesAt);
      block.second = zero();
    } else if constexpr (kCodes.scale == CodeScale::kTinyFloat) {
      block.scale = load_tiny_floats(tile + kScalesAt);
      block.second = load_tiny_floats(tile + kScalesAt + kPanelRows);
    } else {
      const size_t index = (kHalves ? 2 : 1) * (step * kStepBlocks + kBlock);
      block.scale = scales.scale[index];
      block.second = kHalves ? scales.scale[index + 1] : zero();
      if constexpr (kMinimums) {
        block.first_minimum = scales.minimum[index];
        block.second_minimum = scales.minimum[index + 1];
      }
    }
    return block;
  }

 private:
  static constexpr ByteTable kValues{kCodes.values, !kSigned                 ? 16
                                                    : kSignedOffsetBits == 7 ? 128
                                                                             : 0};
  // Places in the tile.
  static constexpr size_t kScalesAt = kSmall ? kCodes.lower_bytes() * kPanelRows : 0;
  static constexpr size_t kHalvesAt = kScalesAt + kCodes.scale_bytes() * kPanelRows;
  static constexpr size_t kUpperAt = kHalvesAt + kCodes.half_count() * kRowScaleBytes;
  static constexpr size_t kLowerAt = kSmall ? 0 : kUpperAt + kCodes.upper_bytes() * kPanelRows;

  template <size_t kBlock>
  static void read_codes(const std::byte* tile, size_t step, Block& block) {
    if constexpr (kCodes.bits == 4) {
      unpack_nibbles(tile + kLowerAt + step * 4 * kGroupBytes, block);
    } else {
      const std::byte* lower = tile + kLowerAt + step * kGroups * kGroupBytes;
#pragma GCC unroll 8
      for (size_t group = 0; group < kGroups; ++group) {
        const Bytes pairs = load_bytes(lower + group * kGroupBytes);
        block.weights[group] = bit_and(shift_right<2 * kBlock>(pairs), 0x03030303U);
        if constexpr (kCodes.bits == 3) {
          const Bytes bits =
              shift_right(load_bytes(tile + kUpperAt + group * kGroupBytes), 4 * step);
          const Bytes placed =
              kBlock < 3 ? shift_left < kBlock < 3 ? 2 - kBlock : 0 > (bits) : shift_right<1>(bits);
          block.weights[group] = bit_or(block.weights[group], bit_and(placed, 0x04040404U));
        }
      }
    }
  }
};

}  // namespace
}  // namespace lockstep
