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
//   Q4_K         32 x {nibbles: unit 8c+g is group g of sub-blocks 2c (low) and 2c+1 (high)},
//                3 x {4 bytes of the packed 6-bit scales and minimums}, d, dmin
//   Q5_K         as Q4_K with, before the scales, 8 x {high bits: bit s of unit g is for group g of
//                sub-block s}
//   Q6_K         32 x {nibbles}, 16 x {pairs of high bits}, 4 x {4 scales of 16 elements}, d, with
//                r = s % 4 of sub-block s: nibble r / 2 of unit 16 (s / 4) + 8 (r % 2) + g, and
//                bits 2r, 2r+1 of unit 8 (s / 4) + g
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

enum class Unit : uint8_t { kTwoBytes, kFourBytes, kBitPlane };

constexpr size_t unit_bytes(Unit unit) {
  return unit == Unit::kTwoBytes ? 2 : 4;
}

// A part of a block: where it begins and ends in the file's block, in bytes.
struct Part {
  size_t begin;
  size_t end;
  Unit unit;
};

constexpr Part kF32Parts[] = {{0, 4, Unit::kFourBytes}};
constexpr Part kHalfParts[] = {{0, 2, Unit::kTwoBytes}};
constexpr Part kQ8_0Parts[] = {{2, 34, Unit::kFourBytes}, {0, 2, Unit::kTwoBytes}};
constexpr Part kQ4_0Parts[] = {{2, 18, Unit::kFourBytes}, {0, 2, Unit::kTwoBytes}};
constexpr Part kQ4_1Parts[] = {{4, 20, Unit::kFourBytes}, {0, 4, Unit::kTwoBytes}};
constexpr Part kQ5_0Parts[] = {
    {6, 22, Unit::kFourBytes}, {2, 6, Unit::kBitPlane}, {0, 2, Unit::kTwoBytes}};
constexpr Part kQ5_1Parts[] = {
    {8, 24, Unit::kFourBytes}, {4, 8, Unit::kBitPlane}, {0, 4, Unit::kTwoBytes}};
constexpr Part kQ4_KParts[] = {
    {16, 144, Unit::kFourBytes}, {4, 16, Unit::kFourBytes}, {0, 4, Unit::kTwoBytes}};
constexpr Part kQ5_KParts[] = {{48, 176, Unit::kFourBytes},
                               {16, 48, Unit::kFourBytes},
                               {4, 16, Unit::kFourBytes},
                               {0, 4, Unit::kTwoBytes}};
constexpr Part kQ6_KParts[] = {{0, 128, Unit::kFourBytes},
                               {128, 192, Unit::kFourBytes},
                               {192, 208, Unit::kFourBytes},
                               {208, 210, Unit::kTwoBytes}};

// The parts of a format's block in the order in which the tile holds them.
std::span<const Part> parts_of(Format format) {
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

// Bit 4g+b to bit 8b+g.
uint32_t spread_bits(uint32_t file) {
  uint32_t plane = 0;
  for (uint32_t bit = 0; bit < 32; ++bit) {
    plane |= ((file >> bit) & 1U) << (8 * (bit % 4) + bit / 4);
  }
  return plane;
}

// Bit 8b+g to bit 4g+b.
uint32_t gather_bits(uint32_t plane) {
  uint32_t file = 0;
  for (uint32_t bit = 0; bit < 32; ++bit) {
    file |= ((plane >> (8 * (bit % 4) + bit / 4)) & 1U) << bit;
  }
  return file;
}

// Copies one row's units of one part into the tile: kBytes at a time, kPanelRows units apart.
template <size_t kBytes>
void scatter_units(const std::byte* block, size_t count, std::byte* tile) {
  for (size_t unit = 0; unit < count; ++unit) {
    std::memcpy(tile + unit * kBytes * kPanelRows, block + unit * kBytes, kBytes);
  }
}

// `tile` points at this row's first unit of the part.
void pack_part(const Part& part, const std::byte* block, std::byte* tile) {
  const size_t bytes = part.end - part.begin;
  switch (part.unit) {
    case Unit::kTwoBytes:
      return scatter_units<2>(block + part.begin, bytes / 2, tile);
    case Unit::kFourBytes:
      return scatter_units<4>(block + part.begin, bytes / 4, tile);
    case Unit::kBitPlane:
      break;
  }
  uint32_t bits = 0;
  std::memcpy(&bits, block + part.begin, sizeof bits);
  bits = spread_bits(bits);
  std::memcpy(tile, &bits, sizeof bits);
}

void unpack_part(const Part& part, const std::byte* tile, std::byte* block) {
  const size_t bytes = unit_bytes(part.unit);
  for (size_t offset = part.begin; offset < part.end; offset += bytes) {
    std::memcpy(block + offset, tile + (offset - part.begin) * kPanelRows, bytes);
  }
  if (part.unit == Unit::kBitPlane) {
    uint32_t bits = 0;
    std::memcpy(&bits, block + part.begin, sizeof bits);
    bits = gather_bits(bits);
    std::memcpy(block + part.begin, &bits, sizeof bits);
  }
}

}  // namespace

size_t panel_bytes(Format format, size_t columns) {
  return kPanelRows * row_bytes(format, columns);
}

void pack_panel(Format format, size_t columns, const std::byte* rows, size_t row_count,
                std::byte* panel) {
  CHECK(row_count >= 1 && row_count <= kPanelRows, "a panel of {} rows", row_count);
  const FormatTraits& format_traits = traits(format);
  const size_t block_bytes = format_traits.block_bytes;
  const size_t block_count = columns / format_traits.block_elements;
  const size_t stride = row_bytes(format, columns);
  const std::span<const Part> parts = parts_of(format);
  if (row_count < kPanelRows) std::memset(panel, 0, panel_bytes(format, columns));
  for (size_t block = 0; block < block_count; ++block) {
    std::byte* target = panel + block * block_bytes * kPanelRows;
    for (const Part& part : parts) {
      for (size_t row = 0; row < row_count; ++row) {
        pack_part(part, rows + row * stride + block * block_bytes,
                  target + row * unit_bytes(part.unit));
      }
      target += (part.end - part.begin) * kPanelRows;
    }
  }
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
    for (const Part& part : parts_of(matrix.format)) {
      unpack_part(part, tile + lane * unit_bytes(part.unit), block);
      tile += (part.end - part.begin) * kPanelRows;
    }
    format_traits.dequantize(block, format_traits.block_elements, values + column);
  }
}

}  // namespace lockstep
