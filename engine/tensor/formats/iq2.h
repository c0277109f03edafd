// IQ2_S, IQ2_XS, IQ2_XXS: eight elements' sizes are an entry of a grid, their signs come beside it.
// In memory a code is two bits of size and the sign. Scales are (2 s + 1) / 8 times a half.
#pragma once

#include "engine/tensor/formats/coded.h"
#include "engine/tensor/formats/grids.h"

namespace lockstep {

inline constexpr std::array<int8_t, 16> kIq2Values = {8, 25, 43, 0, -8, -25, -43, 0};

// The codes of eight elements.
inline void read_signed_grid(uint16_t entry, unsigned signs, uint8_t* codes) {
  write_eight(codes, spread_eight(entry) | kSpreadBits[signs] << 2U);
}

// The scales of 16 groups from 8 bytes of two.
inline void read_nibble_scales(const std::byte* nibbles, CodedBlock& out) {
  for (size_t group = 0; group < 16; ++group) {
    const auto both = std::to_integer<unsigned>(nibbles[group / 2]);
    out.scales[group] = static_cast<uint8_t>(2 * (both >> (group % 2 * 4) & 15U) + 1);
  }
}

// A half; for each 8 elements the lower 8 bits of an entry's number, then for each a byte of signs;
// 8 bytes of the numbers' upper two bits; for each 16 elements 4 bits of scale.
struct Iq2SBlocks {
  static constexpr CodedFile kFile = {Format::kIq2S, "IQ2_S", 22, 256, 82};
  static constexpr CodeTraits kCodes = {
      .bits = 3, .scale = CodeScale::kSigned16, .values = kIq2Values, .unit = 0.125F};

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    out.halves[0] = read_u16(block);
    for (size_t eight = 0; eight < 32; ++eight) {
      const auto lower = std::to_integer<size_t>(block[2 + eight]);
      const auto upper = std::to_integer<size_t>(block[66 + eight / 4]) >> (eight % 4 * 2) & 3U;
      read_signed_grid(kIq2SGrid[lower | upper << 8U], std::to_integer<unsigned>(block[34 + eight]),
                       out.codes.data() + 8 * eight);
    }
    read_nibble_scales(block + 74, out);
  }
};
using Iq2S = Coded<Iq2SBlocks>;

// A half; for each 8 elements 16 bits: an entry's number of 9 bits and 7 signs, of which the eighth
// is the parity; for each 16 elements 4 bits of scale.
struct Iq2XsBlocks {
  static constexpr CodedFile kFile = {Format::kIq2Xs, "IQ2_XS", 17, 256, 74};
  static constexpr CodeTraits kCodes = Iq2SBlocks::kCodes;

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    out.halves[0] = read_u16(block);
    for (size_t eight = 0; eight < 32; ++eight) {
      const unsigned word = read_u16(block + 2 + 2 * eight);
      read_signed_grid(kIq2XsGrid[word & 511U], with_parity(word >> 9U),
                       out.codes.data() + 8 * eight);
    }
    read_nibble_scales(block + 66, out);
  }
};
using Iq2Xs = Coded<Iq2XsBlocks>;

// A half; for each 32 elements four numbers of entries and 32 bits: for each 8 elements 7 signs,
// and 4 bits of scale.
struct Iq2XxsBlocks {
  static constexpr CodedFile kFile = {Format::kIq2Xxs, "IQ2_XXS", 16, 256, 66};
  static constexpr CodeTraits kCodes = {
      .bits = 3, .scale = CodeScale::kSigned32, .values = kIq2Values, .unit = 0.125F};

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    out.halves[0] = read_u16(block);
    for (size_t group = 0; group < 8; ++group) {
      const std::byte* numbers = block + 2 + 8 * group;
      const uint32_t word = read_u32(numbers + 4);
      for (size_t eight = 0; eight < 4; ++eight) {
        read_signed_grid(kIq2XxsGrid[std::to_integer<size_t>(numbers[eight])],
                         with_parity(word >> (7 * eight) & 127U),
                         out.codes.data() + 32 * group + 8 * eight);
      }
      out.scales[group] = static_cast<uint8_t>(2 * (word >> 28U) + 1);
    }
  }
};
using Iq2Xxs = Coded<Iq2XxsBlocks>;

}  // namespace lockstep
