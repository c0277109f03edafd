// A tile is the 16 rows' blocks with their bytes rearranged. A block is taken as parts (its scales,
// its quants ...); each part is cut into units of 2 or 4 bytes, and the tile holds, part after
// part, for each unit the 16 rows' units: so a vector of 64 bytes is one unit of 4 bytes of all
// rows, and a lane of 32 bits is a row. For quants a unit is 4 consecutive k, as the byte dot
// products want.
//
//   F32          value
//   F16 BF16     value
//   Q8_0         8 x {quants of k = 4g .. 4g+3}, d
//   Q4_0         4 x {low nibbles: k = 4g .. 4g+3, high nibbles: k = 16+4g ..}, d
//   Q4_1         as Q4_0, then d, m
//   Q5_0         as Q4_0, then the plane of high bits, then d
//   Q5_1         as Q5_0, then d, m
//   Q4_K         3 x {4 bytes of the packed 6-bit scales and minimums}, d, dmin,
//                32 x {nibbles: unit 8c+g is group g of sub-blocks 2c (low) and 2c+1 (high)}
//   Q5_K         as Q4_K with, before the nibbles, 8 x {high bits: bit s of unit g is for group g
//   of
//                sub-block s}
//   Q6_K         4 x {4 scales of 16 elements}, twice {8 x nibbles, 8 x pairs of high bits, 8 x
//                nibbles}, d, with r = s % 4 of sub-block s, in half s / 4: nibble r / 2 of unit g
//                of the (r % 2)th nibbles, and bits 2r, 2r+1 of unit g of the pairs
//
// Within a tile things lie in the order in which a product of one token comes to them, so that it
// reads memory in one stream per panel: the processor's own prefetching follows nothing else.
//
// Only the plane of Q5_0 and Q5_1 is more than a rearrangement of bytes: bit 4g+b of the file's 32
// bits goes to bit g of byte b, so that one shift and one mask give the high bits of a group.
#include "engine/kernels/packed_matrix.h"

#include <cstdint>
#include <cstring>
#include <span>

#include "engine/base/check.h"

namespace lockstep {
namespace {

constexpr PanelPart kF32Parts[] = {{0, 4, PanelUnit::kFourBytes}};
constexpr PanelPart kHalfParts[] = {{0, 2, PanelUnit::kTwoBytes}};
constexpr PanelPart kQ8_0Parts[] = {{2, 34, PanelUnit::kFourBytes}, {0, 2, PanelUnit::kTwoBytes}};
constexpr PanelPart kQ4_0Parts[] = {{2, 18, PanelUnit::kFourBytes}, {0, 2, PanelUnit::kTwoBytes}};
constexpr PanelPart kQ4_1Parts[] = {{4, 20, PanelUnit::kFourBytes}, {0, 4, PanelUnit::kTwoBytes}};
constexpr PanelPart kQ5_0Parts[] = {
    {6, 22, PanelUnit::kFourBytes}, {2, 6, PanelUnit::kBitPlane}, {0, 2, PanelUnit::kTwoBytes}};
constexpr PanelPart kQ5_1Parts[] = {
    {8, 24, PanelUnit::kFourBytes}, {4, 8, PanelUnit::kBitPlane}, {0, 4, PanelUnit::kTwoBytes}};
constexpr PanelPart kQ4_KParts[] = {
    {4, 16, PanelUnit::kFourBytes}, {0, 4, PanelUnit::kTwoBytes}, {16, 144, PanelUnit::kFourBytes}};
constexpr PanelPart kQ5_KParts[] = {{4, 16, PanelUnit::kFourBytes},
                                    {0, 4, PanelUnit::kTwoBytes},
                                    {16, 48, PanelUnit::kFourBytes},
                                    {48, 176, PanelUnit::kFourBytes}};
constexpr PanelPart kQ6_KParts[] = {
    {192, 208, PanelUnit::kFourBytes}, {0, 32, PanelUnit::kFourBytes},
    {128, 160, PanelUnit::kFourBytes}, {32, 64, PanelUnit::kFourBytes},
    {64, 96, PanelUnit::kFourBytes},   {160, 192, PanelUnit::kFourBytes},
    {96, 128, PanelUnit::kFourBytes},  {208, 210, PanelUnit::kTwoBytes}};

// Bit 8b+g to bit 4g+b.
uint32_t gather_bits(uint32_t plane) {
  uint32_t file = 0;
  for (uint32_t bit = 0; bit < 32; ++bit) {
    file |= ((plane >> (8 * (bit % 4) + bit / 4)) & 1U) << bit;
  }
  return file;
}

void unpack_part(const PanelPart& part, const std::byte* tile, std::byte* block) {
  const size_t bytes = unit_bytes(part.unit);
  for (size_t offset = part.begin; offset < part.end; offset += bytes) {
    std::memcpy(block + offset, tile + (offset - part.begin) * kPanelRows, bytes);
  }
  if (part.unit == PanelUnit::kBitPlane) {
    uint32_t bits = 0;
    std::memcpy(&bits, block + part.begin, sizeof bits);
    bits = gather_bits(bits);
    std::memcpy(block + part.begin, &bits, sizeof bits);
  }
}

}  // namespace

// The parts of a format's block in the order in which the tile holds them.
std::span<const PanelPart> parts_of(Format format) {
  switch (format) {
    case Format::kF32:
      return kF32Parts;
    case Format::kF16:
    case Format::kBf16:
      return kHalfParts;
    case Format::kQ8_0:
      return kQ8_0Parts;
    case Format::kQ4_0:
      return kQ4_0Parts;
    case Format::kQ4_1:
      return kQ4_1Parts;
    case Format::kQ5_0:
      return kQ5_0Parts;
    case Format::kQ5_1:
      return kQ5_1Parts;
    case Format::kQ4_K:
      return kQ4_KParts;
    case Format::kQ5_K:
      return kQ5_KParts;
    case Format::kQ6_K:
      return kQ6_KParts;
  }
  CHECK(false, "no layout for format {}", static_cast<int>(format));
  return {};
}

size_t panel_bytes(Format format, size_t columns) {
  return kPanelRows * row_bytes(format, columns);
}

void unpack_row(const PackedMatrix& matrix, size_t row, float* values) {
  CHECK(row < matrix.rows, "row {} of {}", row, matrix.rows);
  const FormatTraits& format_traits = traits(matrix.format);
  const size_t block_bytes = format_traits.block_bytes;
  const size_t lane = row % kPanelRows;
  const std::byte* tile =
      matrix.panels + row / kPanelRows * panel_bytes(matrix.format, matrix.columns);
  constexpr size_t kBlockBytesMax = 256;
  CHECK(block_bytes <= kBlockBytesMax, "a block of {} bytes", block_bytes);
  std::byte block[kBlockBytesMax];
  for (size_t column = 0; column < matrix.columns; column += format_traits.block_elements) {
    for (const PanelPart& part : parts_of(matrix.format)) {
      unpack_part(part, tile + lane * unit_bytes(part.unit), block);
      tile += (part.end - part.begin) * kPanelRows;
    }
    format_traits.dequantize(block, format_traits.block_elements, values + column);
  }
}

}  // namespace lockstep
