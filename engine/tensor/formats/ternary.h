// TQ1_0, TQ2_0: blocks of 256 elements that are -1, 0 or 1 times a half.
#pragma once

#include "engine/tensor/formats/coded.h"

namespace lockstep {

inline constexpr CodeTraits kTernaryCodes = {
    .bits = 2, .scale = CodeScale::kHalf256, .values = {-1, 0, 1, 2}};

// 48 bytes of five elements and 4 of four, as fractions of 256 in base 3, and a half. The first 32
// bytes' elements are 32 apart, the next 16 bytes' 16, the last four's 4.
struct Tq1Blocks {
  static constexpr CodedFile kFile = {Format::kTq1_0, "TQ1_0", 34, 256, 54};
  static constexpr CodeTraits kCodes = kTernaryCodes;

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    read_digits(block, 32, 5, out.codes.data());
    read_digits(block + 32, 16, 5, out.codes.data() + 160);
    read_digits(block + 48, 4, 4, out.codes.data() + 240);
    out.halves[0] = read_u16(block + 52);
  }

 private:
  static void read_digits(const std::byte* bytes, size_t count, size_t digits, uint8_t* codes) {
    for (size_t i = 0; i < count; ++i) {
      auto fraction = std::to_integer<uint8_t>(bytes[i]);
      for (size_t digit = 0; digit < digits; ++digit) {
        codes[digit * count + i] = static_cast<uint8_t>(fraction * 3U >> 8U);
        fraction = static_cast<uint8_t>(fraction * 3U);
      }
    }
  }
};
using Tq1_0 = Coded<Tq1Blocks>;

// 64 bytes of pairs of bits, a half. Of a pair the file's 3 stands for 2.
struct Tq2Blocks {
  static constexpr CodedFile kFile = {Format::kTq2_0, "TQ2_0", 35, 256, 66};
  static constexpr CodeTraits kCodes = kTernaryCodes;

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    read_bit_pairs(block, out);
    out.halves[0] = read_u16(block + 64);
  }
};
using Tq2_0 = Coded<Tq2Blocks>;

}  // namespace lockstep
