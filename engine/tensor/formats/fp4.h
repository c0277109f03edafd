// MXFP4, NVFP4: floats of 4 bits (sign, two bits of exponent, one of fraction), of which the table
// holds twice the value.
// Source: OCP Microscaling Formats (MX) 1.0; ggml's block definitions.
#pragma once

#include "engine/tensor/formats/coded.h"

namespace lockstep {

// An exponent, 32 nibbles.
struct Mxfp4Blocks {
  static constexpr CodedFile kFile = {Format::kMxfp4, "MXFP4", 39, 32, 17};
  static constexpr CodeTraits kCodes = {
      .bits = 4, .scale = CodeScale::kExponent, .values = kFp4Values, .is_common = true};

  static void read(const std::byte* block, size_t, CodedBlock& out) {
    out.scales[0] = std::to_integer<uint8_t>(block[0]);
    read_nibbles(block + 1, out.codes.data());
  }
};
using Mxfp4 = Coded<Mxfp4Blocks>;

// Four scales, one for each 16 elements, and for each 16 elements 8 bytes: byte i is element i low
// and element i + 8 high. Of a scale's byte the sign has no meaning; 127, a NaN, is zero.
struct Nvfp4Blocks {
  static constexpr CodedFile kFile = {Format::kNvfp4, "NVFP4", 40, 64, 36};
  static constexpr CodeTraits kCodes = {
      .bits = 4, .scale = CodeScale::kTinyFloat, .values = kFp4Values};

  static void read(const std::byte* block, size_t part, CodedBlock& out) {
    for (size_t group = 0; group < 2; ++group) {
      const auto scale = std::to_integer<unsigned>(block[2 * part + group]);
      out.scales[group] = static_cast<uint8_t>(scale == 127 ? 0 : scale & 127U);
      const std::byte* nibbles = block + 4 + (2 * part + group) * 8;
      for (size_t i = 0; i < 8; ++i) {
        const auto both = std::to_integer<unsigned>(nibbles[i]);
        out.codes[group * 16 + i] = static_cast<uint8_t>(both & 15U);
        out.codes[group * 16 + i + 8] = static_cast<uint8_t>(both >> 4U);
      }
    }
  }
};
using Nvfp4 = Coded<Nvfp4Blocks>;

}  // namespace lockstep
