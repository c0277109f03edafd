// A tile is the 16 rows' blocks with their bytes rearranged. A block is taken as parts (its scales,
// its quants ...); each part is cut into units of 1, 2 or 4 bytes, and the tile holds, part
// after part, for each unit the 16 rows' units: so a vector of 64 bytes is one unit of 4 bytes of
// all rows, and a lane of 32 bits is a row. For quants a unit is 4 consecutive k, as the byte dot
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
//   codes        (tensor/formats/coded.h) of 32 elements the codes, then the scales; of 256 the
//                scales, the upper bits, the lower bits
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

// Bit 8b+g to bit 4g+b.
uint32_t gather_bits(uint32_t plane) {
  uint32_t file = 0;
  for (uint32_t bit = 0; bit < 32; ++bit) {
    file |= ((plane >> (8 * (bit % 4) + bit / 4)) & 1U) << bit;
  }
  return file;
}

void unpack_part(const BlockPart& part, const std::byte* tile, std::byte* block) {
  const size_t bytes = unit_bytes(part.unit);
  for (size_t offset = part.begin; offset < part.end; offset += bytes) {
    std::memcpy(block + offset, tile + (offset - part.begin) * kPanelRows, bytes);
  }
  if (part.unit == BlockUnit::kBitPlane) {
    uint32_t bits = 0;
    std::memcpy(&bits, block + part.begin, sizeof bits);
    bits = gather_bits(bits);
    std::memcpy(block + part.begin, &bits, sizeof bits);
  }
}

}  // namespace

size_t panel_bytes(Format format, size_t columns) {
  return kPanelRows * packed_row_bytes(format, columns);
}

void unpack_row(const PackedMatrix& matrix, size_t row, float* values) {
  CHECK(row < matrix.rows, "row {} of {}", row, matrix.rows);
  const PackedBlock& packed = traits(matrix.format).packed;
  const size_t lane = row % kPanelRows;
  const std::byte* tile =
      matrix.panels + row / kPanelRows * panel_bytes(matrix.format, matrix.columns);
  constexpr size_t kBlockBytesMax = 256;
  CHECK(packed.bytes <= kBlockBytesMax, "a block of {} bytes", packed.bytes);
  std::byte block[kBlockBytesMax];
  for (size_t column = 0; column < matrix.columns; column += packed.elements) {
    for (const BlockPart& part : packed.parts) {
      unpack_part(part, tile + lane * unit_bytes(part.unit), block);
      tile += (part.end - part.begin) * kPanelRows;
    }
    packed.dequantize(block, packed.elements, values + column);
  }
}

}  // namespace lockstep
