// Formats whose weights are codes of 2 to 4 bits: a weight is its group's scale times what a table
// says of its code, less its group's minimum where the format has them. Such a format states its
// block in the file, its codes, and how they are read; what follows is the same for all: their
// exact values, how memory holds them, and how processors unpack them
// (engine/kernels/cpu/coded_tile.inl.h).
//
// In memory a block is of 32 elements or of 256 and holds, in this order:
//   4 bits   for each 32 elements 16 bytes: byte i is element i low and element i + 16 high
//   2, 3     for each 128 elements 32 bytes of lower bits: byte i holds two bits of the elements i,
//            i + 32, i + 64, i + 96, upwards; with 3 then 32 bytes of upper bits: bit g of byte i
//            is that of element i of the g-th 32
//   scales   as CodeScale says, the small ones before the halves
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "engine/tensor/formats/block_bytes.h"

namespace lockstep {

// The scales of a block in memory. Every product of them and a value of the table is exact in f32.
enum class CodeScale : uint8_t {
  kHalf,       // 32 elements: a half
  kExponent,   // 32 elements: a byte e for 2^(e - 128), E8M0 of half the weight
  kTinyFloat,  // 32 elements: for each 16 a byte, UE4M3 of twice the scale
  kSigned32,   // 256 elements: for each 32 a signed byte, and a half that multiplies them
  kSigned16,   // 256 elements: the same for each 16
  kNibbles16,  // 256 elements: for each 16 a byte, the scale low and the minimum high, and a half
               // for either
  kHalf256,    // 256 elements: a half
};

struct CodeTraits {
  uint32_t bits = 4;
  CodeScale scale = CodeScale::kHalf;
  std::array<int8_t, 16> values = {};  // by code
  float unit = 1;                      // multiplies the scale; a power of two
  bool is_common = false;              // processors have a product for it alone

  constexpr bool is_small() const {
    return scale == CodeScale::kHalf || scale == CodeScale::kExponent ||
           scale == CodeScale::kTinyFloat;
  }
  constexpr uint32_t elements() const { return is_small() ? 32 : 256; }
  constexpr bool has_minimums() const { return scale == CodeScale::kNibbles16; }
  // The two halves of 32 elements have scales of their own.
  constexpr bool has_halves() const {
    return scale == CodeScale::kTinyFloat || scale == CodeScale::kSigned16 || has_minimums();
  }
  constexpr uint32_t lower_bytes() const { return elements() / (bits == 4 ? 2 : 4); }
  constexpr uint32_t upper_bytes() const { return bits == 3 ? elements() / 8 : 0; }
  constexpr uint32_t scale_bytes() const {
    switch (scale) {
      case CodeScale::kHalf:
      case CodeScale::kHalf256:
        return 0;
      case CodeScale::kExponent:
        return 1;
      case CodeScale::kTinyFloat:
        return 2;
      case CodeScale::kSigned32:
        return 8;
      case CodeScale::kSigned16:
      case CodeScale::kNibbles16:
        return 16;
    }
    return 0;
  }
  constexpr uint32_t half_count() const {
    if (scale == CodeScale::kExponent || scale == CodeScale::kTinyFloat) return 0;
    return has_minimums() ? 2 : 1;
  }
  constexpr uint32_t upper_begin() const { return lower_bytes(); }
  constexpr uint32_t scales_begin() const { return upper_begin() + upper_bytes(); }
  constexpr uint32_t halves_begin() const { return scales_begin() + scale_bytes(); }
  constexpr uint32_t bytes() const { return halves_begin() + 2 * half_count(); }
  constexpr int largest() const {
    return std::max<int>(std::ranges::max(values), -std::ranges::min(values));
  }
  // The codes are the values with a power of two added.
  constexpr int offset() const { return -values[0]; }
  constexpr bool is_linear() const {
    if (offset() != 0 && !std::has_single_bit(static_cast<unsigned>(offset()))) return false;
    for (int code = 0; code < 1 << bits; ++code) {
      if (values[static_cast<size_t>(code)] != code - offset()) return false;
    }
    return offset() != 1;  // 2^0 would be told as none
  }
};

// A block in memory, taken apart.
struct CodedBlock {
  std::array<uint8_t, kSuperElements> codes;
  std::array<uint8_t, 16> scales;
  std::array<uint16_t, 2> halves;
};

// Byte i of 16 holds element i low and element i + 16 high.
inline void read_nibbles(const std::byte* nibbles, uint8_t* codes) {
  for (size_t i = 0; i < 16; ++i) {
    const auto both = std::to_integer<uint8_t>(nibbles[i]);
    codes[i] = both & 15U;
    codes[i + 16] = both >> 4U;
  }
}

// Byte i of 32 holds, for each 128 elements, two bits of the elements i, i + 32, i + 64, i + 96,
// upwards.
inline void read_bit_pairs(const std::byte* pairs, CodedBlock& out) {
  for (size_t part = 0; part < 8; ++part) {
    for (size_t i = 0; i < 32; ++i) {
      const auto four = std::to_integer<unsigned>(pairs[part / 4 * 32 + i]);
      out.codes[part * 32 + i] = static_cast<uint8_t>(four >> (part % 4 * 2) & 3U);
    }
  }
}

// Codes are taken eight at a time, one in each byte of a word.
inline constexpr uint64_t kLowestBits = 0x0101010101010101U;

inline uint64_t read_eight(const void* bytes) {
  uint64_t eight = 0;
  std::memcpy(&eight, bytes, sizeof eight);
  return eight;
}
inline void write_eight(void* bytes, uint64_t eight) {
  std::memcpy(bytes, &eight, sizeof eight);
}

// Bit g of byte i of 32 becomes bit 2 of element i of the g-th 32.
inline void add_upper_bits(const std::byte* bits, CodedBlock& out) {
  for (size_t i = 0; i < 32; i += 8) {
    const uint64_t all = read_eight(bits + i);
    for (size_t group = 0; group < 8; ++group) {
      uint8_t* codes = out.codes.data() + group * 32 + i;
      write_eight(codes, read_eight(codes) | (all >> group & kLowestBits) << 2U);
    }
  }
}

// The other way round.
inline void take_upper_bits(const CodedBlock& block, std::byte* bits) {
  for (size_t i = 0; i < 32; i += 8) {
    uint64_t all = 0;
    for (size_t group = 0; group < 8; ++group) {
      const uint64_t codes = read_eight(block.codes.data() + group * 32 + i);
      all |= (codes >> 2U & kLowestBits) << group;
    }
    write_eight(bits + i, all);
  }
}

inline float exponent_scale(uint8_t exponent) {
  const uint32_t bits = exponent < 2 ? 0x00200000U << exponent : (exponent - 1U) << 23U;
  return std::bit_cast<float>(bits);
}

// A byte below 128.
inline float tiny_float_scale(uint8_t bits) {
  return half_to_float(static_cast<uint16_t>(bits << 7U)) * 128.0F;
}

// Scale and minimum of the `group`-th 16 elements.
struct GroupScale {
  float scale;
  float minimum;
};

template <const CodeTraits& kCodes>
GroupScale group_scale(const CodedBlock& block, size_t group) {
  const float half = half_to_float(block.halves[0]);
  const auto of_byte = [&](size_t index) {
    return half * static_cast<float>(static_cast<int8_t>(block.scales[index])) * kCodes.unit;
  };
  switch (kCodes.scale) {
    case CodeScale::kHalf:
    case CodeScale::kHalf256:
      return {half, 0};
    case CodeScale::kExponent:
      return {exponent_scale(block.scales[0]), 0};
    case CodeScale::kTinyFloat:
      return {tiny_float_scale(block.scales[group]), 0};
    case CodeScale::kSigned32:
      return {of_byte(group / 2), 0};
    case CodeScale::kSigned16:
      return {of_byte(group), 0};
    case CodeScale::kNibbles16:
      break;
  }
  return {half * static_cast<float>(block.scales[group] & 15U),
          half_to_float(block.halves[1]) * static_cast<float>(block.scales[group] >> 4U)};
}

template <const CodeTraits& kCodes>
void write_values(const CodedBlock& block, float* values) {
  for (size_t group = 0; group < kCodes.elements() / 16; ++group) {
    const GroupScale own = group_scale<kCodes>(block, group);
    for (size_t index = group * 16; index < group * 16 + 16; ++index) {
      const auto value = static_cast<float>(kCodes.values[block.codes[index]]);
      values[index] = kCodes.has_minimums() ? own.scale * value - own.minimum : own.scale * value;
    }
  }
}

template <const CodeTraits& kCodes>
void pack_codes(const CodedBlock& block, std::byte* packed) {
  uint8_t planes[kSuperElements / 2] = {};
  if constexpr (kCodes.bits == 4) {
    for (size_t begin = 0; begin < kCodes.elements(); begin += 32) {
      const uint8_t* codes = block.codes.data() + begin;
      for (size_t i = 0; i < 16; ++i) {
        planes[begin / 2 + i] = static_cast<uint8_t>(codes[i] | codes[i + 16] << 4U);
      }
    }
  } else {
    for (size_t begin = 0; begin < kSuperElements; begin += 128) {
      const uint8_t* codes = block.codes.data() + begin;
      for (size_t i = 0; i < 32; ++i) {
        planes[begin / 4 + i] =
            static_cast<uint8_t>((codes[i] & 3U) | (codes[i + 32] & 3U) << 2U |
                                 (codes[i + 64] & 3U) << 4U | (codes[i + 96] & 3U) << 6U);
      }
    }
  }
  std::memcpy(packed, planes, kCodes.lower_bytes());
  if constexpr (kCodes.bits == 3) take_upper_bits(block, packed + kCodes.upper_begin());
  std::memcpy(packed + kCodes.scales_begin(), block.scales.data(), kCodes.scale_bytes());
  std::memcpy(packed + kCodes.halves_begin(), block.halves.data(), 2 * kCodes.half_count());
}

template <const CodeTraits& kCodes>
void unpack_codes(const std::byte* packed, CodedBlock& block) {
  if constexpr (kCodes.bits == 4) {
    for (size_t begin = 0; begin < kCodes.elements(); begin += 32) {
      read_nibbles(packed + begin / 2, block.codes.data() + begin);
    }
  } else {
    read_bit_pairs(packed, block);
    if constexpr (kCodes.bits == 3) add_upper_bits(packed + kCodes.upper_begin(), block);
  }
  std::memcpy(block.scales.data(), packed + kCodes.scales_begin(), kCodes.scale_bytes());
  std::memcpy(block.halves.data(), packed + kCodes.halves_begin(), 2 * kCodes.half_count());
}

// The columns of FormatTraits that tell a format of codes and its block in the file.
struct CodedFile {
  Format format = Format::kF32;
  std::string_view name;
  uint32_t ggml_type = 0;
  uint32_t elements = 0;  // of a block
  uint32_t bytes = 0;     // of a block
};

// The format of `Blocks`, which has
//   kFile                   its CodedFile
//   kCodes                  its CodeTraits
//   read(block, part, out)  takes elements [part * kCodes.elements(), + kCodes.elements()) of a
//   block
//                           of the file apart
template <typename Blocks>
struct Coded : Blocks {
  static constexpr const CodedFile& kFile = Blocks::kFile;
  static constexpr const CodeTraits& kCodes = Blocks::kCodes;
  static constexpr size_t kParts = kFile.elements / kCodes.elements();

  static void dequantize(const std::byte* blocks, size_t count, float* values) {
    CodedBlock block;
    for (size_t start = 0; start < count; start += kFile.elements, blocks += kFile.bytes) {
      for (size_t part = 0; part < kParts; ++part) {
        Blocks::read(blocks, part, block);
        write_values<Blocks::kCodes>(block, values + start + part * kCodes.elements());
      }
    }
  }
  static void encode(const std::byte* blocks, size_t count, std::byte* packed) {
    CodedBlock block;
    for (size_t start = 0; start < count; start += kFile.elements, blocks += kFile.bytes) {
      for (size_t part = 0; part < kParts; ++part, packed += kCodes.bytes()) {
        Blocks::read(blocks, part, block);
        pack_codes<Blocks::kCodes>(block, packed);
      }
    }
  }
  static void dequantize_packed(const std::byte* packed, size_t count, float* values) {
    CodedBlock block;
    for (size_t start = 0; start < count; start += kCodes.elements(), packed += kCodes.bytes()) {
      unpack_codes<Blocks::kCodes>(packed, block);
      write_values<Blocks::kCodes>(block, values + start);
    }
  }

  // In a panel the scales of large blocks come first, as kernels read them. Parts of no bytes are
  // none.
  static constexpr size_t kPartCount =
      1 + (kCodes.upper_bytes() > 0) + (kCodes.scale_bytes() > 0) + (kCodes.half_count() > 0);
  static constexpr std::array<BlockPart, kPartCount> kBlockParts = [] {
    std::array<BlockPart, kPartCount> parts;
    size_t count = 0;
    const auto add = [&](size_t begin, size_t end, BlockUnit unit) {
      if (begin < end) parts[count++] = {begin, end, unit};
    };
    const auto add_codes = [&] {
      add(kCodes.upper_begin(), kCodes.scales_begin(), BlockUnit::kFourBytes);
      add(0, kCodes.lower_bytes(), BlockUnit::kFourBytes);
    };
    if (kCodes.is_small()) add_codes();
    add(kCodes.scales_begin(), kCodes.halves_begin(),
        kCodes.is_small() ? BlockUnit::kOneByte : BlockUnit::kFourBytes);
    add(kCodes.halves_begin(), kCodes.bytes(), BlockUnit::kTwoBytes);
    if (!kCodes.is_small()) add_codes();
    return parts;
  }();

  static constexpr FormatTraits kTraits = {
      kFile.format,
      kFile.name,
      kFile.ggml_type,
      kFile.elements,
      kFile.bytes,
      dequantize,
      {kCodes.elements(), kCodes.bytes(), kBlockParts, encode, dequantize_packed}};
};

}  // namespace lockstep
