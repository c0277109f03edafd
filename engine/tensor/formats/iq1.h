// IQ1_S, IQ1_M: eight elements of -1, 0, 1 are an entry of a grid, to which an eighth is added or
// from which it is taken; the table holds eight times the value. Taking the eighth from an element
// is the same as adding it to the negative element and turning the scale's sign. IQ1_S does so,
// since in it all elements of a scale have one sign: a code is two bits. In IQ1_M, whose scales
// have two signs each, a code is two bits of the grid and the sign.
#pragma once

#include "engine/tensor/formats/coded.h"
#include "engine/tensor/formats/grids.h"

namespace lockstep {

inline constexpr std::array<int8_t, 16> kIq1Values = {-7, 1, 9, 0, -9, -1, 7, 0};

// 0, 1, 2 in each byte become 2, 1, 0.
inline uint64_t negate_grid(uint64_t codes) {
  return 2 * kLowestBits - codes;
}

// A half; for each 8 elements the lower 8 bits of an entry's number; for each 32 elements 16 bits:
// four numbers' upper three bits, 3 bits s of a scale 2 s + 1, the sign.
struct Iq1SBlocks {
  static constexpr CodedFile kFile = {Format::kIq1S, "IQ1_S", 19, 256, 50};
  static constexpr CodeTraits kCodes = {
      .bits = 2, .scale = CodeScale::kSigned32, .values = {-7, 1, 9}, .unit = 0.125F};

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    out.halves[0] = read_u16(block);
    for (size_t group = 0; group < 8; ++group) {
      const unsigned word = read_u16(block + 34 + 2 * group);
      const bool taken = word >> 15U != 0;
      for (size_t eight = 0; eight < 4; ++eight) {
        const size_t number = std::to_integer<size_t>(block[2 + 4 * group + eight]) |
                              (word >> (3 * eight) & 7U) << 8U;
        const uint64_t codes = spread_eight(kIq1Grid[number]);
        write_eight(out.codes.data() + 32 * group + 8 * eight, taken ? negate_grid(codes) : codes);
      }
      const int scale = 2 * static_cast<int>(word >> 12U & 7U) + 1;
      out.scales[group] = static_cast<uint8_t>(taken ? -scale : scale);
    }
  }
};
using Iq1S = Coded<Iq1SBlocks>;

// For each 8 elements the lower 8 bits of an entry's number; for each 16 elements a byte: twice the
// upper three bits of a number and the sign; 4 words of 16 bits, of which each has four scales of 3
// bits and, in its upper four bits, a quarter of the half, the lowest first.
struct Iq1MBlocks {
  static constexpr CodedFile kFile = {Format::kIq1M, "IQ1_M", 29, 256, 56};
  static constexpr CodeTraits kCodes = {
      .bits = 3, .scale = CodeScale::kSigned16, .values = kIq1Values, .unit = 0.125F};

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    for (size_t eight = 0; eight < 32; ++eight) {
      const unsigned upper =
          std::to_integer<unsigned>(block[32 + eight / 2]) >> (eight % 2 * 4) & 15U;
      const size_t number = std::to_integer<size_t>(block[eight]) | (upper & 7U) << 8U;
      const uint64_t signs = (upper >> 3U) * 4 * kLowestBits;
      write_eight(out.codes.data() + 8 * eight, spread_eight(kIq1Grid[number]) | signs);
    }
    unsigned half = 0;
    for (size_t word = 0; word < 4; ++word) {
      const unsigned bits = read_u16(block + 48 + 2 * word);
      half |= (bits >> 12U) << (4 * word);
      for (size_t group = 0; group < 4; ++group) {
        out.scales[4 * word + group] = static_cast<uint8_t>(2 * (bits >> (3 * group) & 7U) + 1);
      }
    }
    out.halves[0] = static_cast<uint16_t>(half);
  }
};
using Iq1M = Coded<Iq1MBlocks>;

}  // namespace lockstep
