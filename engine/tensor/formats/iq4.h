// IQ4_NL, IQ4_XS: nibbles that stand for the entries of an uneven table.
#pragma once

#include "engine/tensor/formats/coded.h"

namespace lockstep {

// A half scale, 32 nibbles.
struct Iq4NlBlocks {
  static constexpr CodedFile kFile = {Format::kIq4Nl, "IQ4_NL", 20, 32, 18};
  static constexpr CodeTraits kCodes = {
      .bits = 4, .scale = CodeScale::kHalf, .values = kUnevenValues, .is_common = true};

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    out.halves[0] = read_u16(block);
    read_nibbles(block + 2, out.codes.data());
  }
};
using Iq4Nl = Coded<Iq4NlBlocks>;

// A half scale, 16 bits with the upper two of eight scales, 4 bytes with their lower four, and for
// each 32 elements 16 bytes of nibbles. Scales have an offset of 32.
struct Iq4XsBlocks {
  static constexpr CodedFile kFile = {Format::kIq4Xs, "IQ4_XS", 23, 256, 136};
  static constexpr CodeTraits kCodes = {
      .bits = 4, .scale = CodeScale::kSigned32, .values = kUnevenValues, .is_common = true};

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    out.halves[0] = read_u16(block);
    const unsigned upper = read_u16(block + 2);
    for (size_t group = 0; group < 8; ++group) {
      const auto both = std::to_integer<unsigned>(block[4 + group / 2]);
      const unsigned scale = (both >> (group % 2 * 4) & 15U) | (upper >> (2 * group) & 3U) << 4U;
      out.scales[group] = static_cast<uint8_t>(scale - 32);
      read_nibbles(block + 8 + group * 16, out.codes.data() + group * 32);
    }
  }
};
using Iq4Xs = Coded<Iq4XsBlocks>;

}  // namespace lockstep
