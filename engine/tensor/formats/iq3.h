// IQ3_S, IQ3_XXS: four elements' sizes are an entry of a grid, their signs come beside it. In
// memory a code is three bits of size and the sign.
#pragma once

#include "engine/tensor/formats/coded.h"
#include "engine/tensor/formats/grids.h"

namespace lockstep {

// The sizes, and after them their negatives.
constexpr std::array<int8_t, 16> with_negatives(std::array<int8_t, 8> sizes) {
  std::array<int8_t, 16> values = {};
  for (size_t i = 0; i < 8; ++i) {
    values[i] = sizes[i];
    values[i + 8] = static_cast<int8_t>(-sizes[i]);
  }
  return values;
}

// The codes of eight elements.
inline void read_two_grids(uint16_t first, uint16_t second, unsigned signs, uint8_t* codes) {
  const uint64_t sizes = spread_four(first) | uint64_t{spread_four(second)} << 32U;
  write_eight(codes, sizes | kSpreadBits[signs] << 3U);
}

// A half; for each 4 elements the lower 8 bits of an entry's number; 8 bytes of their ninth bits;
// for each 8 elements a byte of signs; for each 32 elements 4 bits s of a scale 2 s + 1.
struct Iq3SBlocks {
  static constexpr CodedFile kFile = {Format::kIq3S, "IQ3_S", 21, 256, 110};
  static constexpr CodeTraits kCodes = {.bits = 4,
                                        .scale = CodeScale::kSigned32,
                                        .values = with_negatives({1, 3, 5, 7, 9, 11, 13, 15})};

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    out.halves[0] = read_u16(block);
    for (size_t eight = 0; eight < 32; ++eight) {
      const auto upper = std::to_integer<size_t>(block[66 + eight / 4]) >> (eight % 4 * 2);
      const auto entry = [&](size_t four) {
        const auto lower = std::to_integer<size_t>(block[2 + 2 * eight + four]);
        return kIq3SGrid[lower | (upper >> four & 1U) << 8U];
      };
      read_two_grids(entry(0), entry(1), std::to_integer<unsigned>(block[74 + eight]),
                     out.codes.data() + 8 * eight);
    }
    for (size_t group = 0; group < 8; ++group) {
      const auto both = std::to_integer<unsigned>(block[106 + group / 2]);
      out.scales[group] = static_cast<uint8_t>(2 * (both >> (group % 2 * 4) & 15U) + 1);
    }
  }
};
using Iq3S = Coded<Iq3SBlocks>;

// A half; for each 4 elements an entry's number; for each 32 elements 32 bits: for each 8 elements
// 7 signs, of which the eighth is the parity, and 4 bits s of a scale (2 s + 1) / 4.
struct Iq3XxsBlocks {
  static constexpr CodedFile kFile = {Format::kIq3Xxs, "IQ3_XXS", 18, 256, 98};
  static constexpr CodeTraits kCodes = {.bits = 4,
                                        .scale = CodeScale::kSigned32,
                                        .values = with_negatives({4, 12, 20, 28, 36, 44, 52, 62}),
                                        .unit = 0.25F};

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    out.halves[0] = read_u16(block);
    for (size_t group = 0; group < 8; ++group) {
      const uint32_t word = read_u32(block + 66 + 4 * group);
      for (size_t eight = 0; eight < 4; ++eight) {
        const std::byte* numbers = block + 2 + 8 * group + 2 * eight;
        read_two_grids(kIq3XxsGrid[std::to_integer<size_t>(numbers[0])],
                       kIq3XxsGrid[std::to_integer<size_t>(numbers[1])],
                       with_parity(word >> (7 * eight) & 127U),
                       out.codes.data() + 32 * group + 8 * eight);
      }
      out.scales[group] = static_cast<uint8_t>(2 * (word >> 28U) + 1);
    }
  }
};
using Iq3Xxs = Coded<Iq3XxsBlocks>;

}  // namespace lockstep
