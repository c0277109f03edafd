// Reads the numbers of which blocks are made, and has tables of what they stand for. Blocks have no
// alignment.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/tensor/format.h"

namespace lockstep {

inline constexpr size_t kSimpleElements = 32;  // elements of a simple block
inline constexpr size_t kSuperElements = 256;  // elements of a K block

// The numbers for which nibbles of IQ4_NL and IQ4_XS stand, and twice those of MXFP4 and NVFP4.
inline constexpr std::array<int8_t, 16> kUnevenValues = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                         1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr std::array<int8_t, 16> kFp4Values = {0, 1,  2,  3,  4,  6,  8,  12,
                                                      0, -1, -2, -3, -4, -6, -8, -12};

inline uint16_t read_u16(const std::byte* bytes) {
  uint16_t value = 0;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

inline uint32_t read_u32(const std::byte* bytes) {
  uint32_t value = 0;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

inline float read_half(const std::byte* bytes) {
  return half_to_float(read_u16(bytes));
}

// Byte i holds element i in its low nibble and element i + 16 in its high one.
inline int nibble(const std::byte* nibbles, size_t element) {
  const int both = std::to_integer<int>(nibbles[element % 16]);
  return element < 16 ? both & 0x0f : both >> 4;
}

inline int fifth_bit(uint32_t bits, size_t element) {
  return static_cast<int>((bits >> element) & 1u) << 4;
}

}  // namespace lockstep
