// IQ1_S, IQ1_M: eight elements of -1, 0, 1 are an entry of a grid, to which an eighth is added or
// from which it is taken. In memory a code is two bits of the grid and that sign; the table holds
// eight times the value.
#pragma once

#include "engine/tensor/formats/coded.h"
#include "engine/tensor/formats/grids.h"

namespace lockstep {

inline constexpr std::array<int8_t, 16> kIq1Values = {-7, 1, 9, 0, -9, -1, 7, 0};

// The codes of eight elements; all have one sign.
inline void read_shifted_grid(uint16_t entry, unsigned sign, uint8_t* codes) {
  write_eight(codes, spread_eight(entry) | sign * 0x0404040404040404U);
}

// A half; for each 8 elements the lower 8 bits of an entry's number; for each 32 elements 16 bits:
// four numbers' upper three bits, 3 bits s of a scale 2 s + 1, the sign.
struct Iq1SBlocks {
  static constexpr CodedFile kFile = {Format::kIq1S, "IQ1_S", 19, 256, 50};
  static constexpr CodeTraits kCodes = {
      .bits = 3, .scale = CodeScale::kSigned32, .values = kIq1Values, .unit = 0.125F};

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    out.halves[0] = read_u16(block);
    for (size_t group = 0; group < 8; ++group) {
      const unsigned word = read_u16(block + 34 + 2 * group);
      for (size_t eight = 0; eight < 4; ++eight) {
        const size_t number = std::to_integer<size_t>(block[2 + 4 * group + eight]) |
                              (word >> (3 * eight) & 7U) << 8U;
        read_shifted_grid(kIq1Grid[number], word >> 15U, out.codes.data() + 32 * group + 8 * eight);
      }
      out.scales[group] = static_cast<uint8_t>(2 * (word >> 12U & 7U) + 1);
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
      read_shifted_grid(kIq1Grid[number], upper >> 3U, out.codes.data() + 8 * eight);
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
