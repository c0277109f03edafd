// Q2_K, Q3_K: blocks of 256 elements of two and three bits in groups of 16.
#pragma once

#include "engine/tensor/formats/coded.h"

namespace lockstep {

// 16 bytes of a scale low and a minimum high, 64 bytes of pairs of bits, a half for the scales and
// one for the minimums.
struct Q2KBlocks {
  static constexpr CodedFile kFile = {Format::kQ2_K, "Q2_K", 10, 256, 84};
  static constexpr CodeTraits kCodes = {
      .bits = 2, .scale = CodeScale::kNibbles16, .values = {0, 1, 2, 3}, .is_common = true};

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    std::memcpy(out.scales.data(), block, 16);
    read_bit_pairs(block + 16, out);
    out.halves = {read_u16(block + 80), read_u16(block + 82)};
  }
};
using Q2_K = Coded<Q2KBlocks>;

// 32 bytes of upper bits: bit g of byte i is that of element i of the g-th 32, and takes off the
// offset of 4; 64 bytes of pairs of bits; 16 scales of six bits with an offset of 32, of which 8
// bytes hold the lower four bits of the scales i and i + 8, and 4 bytes the upper two of the scales
// i, i + 4, i + 8, i + 12, upwards; a half.
struct Q3KBlocks {
  static constexpr CodedFile kFile = {Format::kQ3_K, "Q3_K", 11, 256, 110};
  static constexpr CodeTraits kCodes = {.bits = 3,
                                        .scale = CodeScale::kSigned16,
                                        .values = {-4, -3, -2, -1, 0, 1, 2, 3},
                                        .is_common = true};

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    read_bit_pairs(block + 32, out);
    add_upper_bits(block, out);
    for (size_t group = 0; group < 16; ++group) {
      const auto lower = std::to_integer<unsigned>(block[96 + group % 8]);
      const auto upper = std::to_integer<unsigned>(block[104 + group % 4]);
      const unsigned scale = (lower >> (group / 8 * 4) & 15U) | (upper >> (group / 4 * 2) & 3U)
                                                                    << 4U;
      out.scales[group] = static_cast<uint8_t>(scale - 32);
    }
    out.halves[0] = read_u16(block + 108);
  }
};
using Q3_K = Coded<Q3KBlocks>;

}  // namespace lockstep
