// The grids of the IQ formats, made by scripts/generate/make_format_grids.py. An entry is the
// places of its elements' sizes in the format's table of sizes, the first element's in the lowest
// bits: 2 bits for each of 8 elements, 3 for each of 4.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace lockstep {

extern const uint16_t kIq2XxsGrid[256];
extern const uint16_t kIq2XsGrid[512];
extern const uint16_t kIq2SGrid[1024];
extern const uint16_t kIq3XxsGrid[256];
extern const uint16_t kIq3SGrid[512];
extern const uint16_t kIq1Grid[2048];

// Seven signs and an eighth that makes the number of ones even.
inline unsigned with_parity(unsigned seven) {
  return seven | static_cast<unsigned>(std::popcount(seven) & 1) << 7U;
}

// Bit i of a byte in byte i.
inline constexpr std::array<uint64_t, 256> kSpreadBits = [] {
  std::array<uint64_t, 256> spread = {};
  for (size_t bits = 0; bits < 256; ++bits) {
    for (size_t i = 0; i < 8; ++i) spread[bits] |= uint64_t{bits >> i & 1U} << (8 * i);
  }
  return spread;
}();

// Two bits in each of four bytes.
inline constexpr std::array<uint32_t, 256> kSpreadPairs = [] {
  std::array<uint32_t, 256> spread = {};
  for (size_t bits = 0; bits < 256; ++bits) {
    for (size_t i = 0; i < 4; ++i) {
      spread[bits] |= static_cast<uint32_t>(bits >> (2 * i) & 3U) << (8 * i);
    }
  }
  return spread;
}();

// An entry of 8 elements, one in each byte.
inline uint64_t spread_eight(uint16_t entry) {
  return kSpreadPairs[entry & 255U] | uint64_t{kSpreadPairs[entry >> 8U]} << 32U;
}

// An entry of 4 elements, one in each byte.
inline uint32_t spread_four(uint16_t entry) {
  const uint32_t bits = entry;
  return (bits & 7U) | (bits & 070U) << 5U | (bits & 0700U) << 10U | (bits & 07000U) << 15U;
}

}  // namespace lockstep
