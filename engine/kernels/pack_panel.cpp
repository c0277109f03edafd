// Packing is a transposition: units of 4 (or 2) bytes, which lie a row apart in the file, come to
// lie side by side. Whole panels are transposed in vectors of 16 bytes, 4 units of 4 rows (8 of 8)
// at a time; parts of panels unit by unit. The baseline's instructions do (x86-64-v2).
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "engine/base/check.h"
#include "engine/kernels/packed_matrix.h"

namespace lockstep {
namespace {

// Bit 4g+b to bit 8b+g.
uint32_t spread_bits(uint32_t file) {
  uint32_t plane = 0;
  for (uint32_t bit = 0; bit < 32; ++bit) {
    plane |= ((file >> bit) & 1U) << (8 * (bit % 4) + bit / 4);
  }
  return plane;
}

// Copies one row's units of one part into the tile: kBytes at a time, kPanelRows units apart.
template <size_t kBytes>
void scatter_units(const std::byte* block, size_t count, std::byte* tile) {
  for (size_t unit = 0; unit < count; ++unit) {
    std::memcpy(tile + unit * kBytes * kPanelRows, block + unit * kBytes, kBytes);
  }
}

// `tile` points at this row's first unit of the part.
void pack_part_of_row(const BlockPart& part, const std::byte* block, std::byte* tile) {
  const size_t bytes = part.end - part.begin;
  switch (part.unit) {
    case BlockUnit::kOneByte:
      return scatter_units<1>(block + part.begin, bytes, tile);
    case BlockUnit::kTwoBytes:
      return scatter_units<2>(block + part.begin, bytes / 2, tile);
    case BlockUnit::kFourBytes:
      return scatter_units<4>(block + part.begin, bytes / 4, tile);
    case BlockUnit::kBitPlane:
      break;
  }
  uint32_t bits = 0;
  std::memcpy(&bits, block + part.begin, sizeof bits);
  bits = spread_bits(bits);
  std::memcpy(tile, &bits, sizeof bits);
}

__m128i load_bytes(const std::byte* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

void store_bytes(std::byte* bytes, __m128i value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), value);
}

// 16 bytes of 4 rows to `count` (at most 4) units; a unit's rows are 64 bytes behind the last's.
void transpose_4_by_4(const std::byte* rows, size_t stride, size_t count, std::byte* tile) {
  const __m128i row0 = load_bytes(rows);
  const __m128i row1 = load_bytes(rows + stride);
  const __m128i row2 = load_bytes(rows + 2 * stride);
  const __m128i row3 = load_bytes(rows + 3 * stride);
  const __m128i low01 = _mm_unpacklo_epi32(row0, row1);
  const __m128i low23 = _mm_unpacklo_epi32(row2, row3);
  const __m128i high01 = _mm_unpackhi_epi32(row0, row1);
  const __m128i high23 = _mm_unpackhi_epi32(row2, row3);
  const __m128i units[] = {_mm_unpacklo_epi64(low01, low23), _mm_unpackhi_epi64(low01, low23),
                           _mm_unpacklo_epi64(high01, high23), _mm_unpackhi_epi64(high01, high23)};
  for (size_t unit = 0; unit < count; ++unit) store_bytes(tile + unit * 64, units[unit]);
}

// 16 bytes of 8 rows to 8 units; a unit's rows are 32 bytes behind the last's.
void transpose_8_by_8(const std::byte* rows, size_t stride, std::byte* tile) {
  __m128i a[8];
  __m128i b[8];
  for (size_t row = 0; row < 8; ++row) a[row] = load_bytes(rows + row * stride);
  for (size_t row = 0; row < 4; ++row) {
    b[row] = _mm_unpacklo_epi16(a[2 * row], a[2 * row + 1]);
    b[row + 4] = _mm_unpackhi_epi16(a[2 * row], a[2 * row + 1]);
  }
  for (size_t half = 0; half < 8; half += 4) {
    a[half] = _mm_unpacklo_epi32(b[half], b[half + 1]);
    a[half + 1] = _mm_unpackhi_epi32(b[half], b[half + 1]);
    a[half + 2] = _mm_unpacklo_epi32(b[half + 2], b[half + 3]);
    a[half + 3] = _mm_unpackhi_epi32(b[half + 2], b[half + 3]);
  }
  for (size_t half = 0; half < 8; half += 4) {
    for (size_t pair = 0; pair < 2; ++pair) {
      std::byte* units = tile + (half + 2 * pair) * 32;
      store_bytes(units, _mm_unpacklo_epi64(a[half + pair], a[half + pair + 2]));
      store_bytes(units + 32, _mm_unpackhi_epi64(a[half + pair], a[half + pair + 2]));
    }
  }
}

// The whole lines of a row are used up before the next rows' are fetched: where rows are a power of
// 2 apart, 16 of them would drive each other out of the first-level cache.
constexpr size_t kLineUnits4 = 16;
constexpr size_t kLineUnits2 = 32;

// Units of 16 rows. `readable`: bytes of a row from `rows` on that may be loaded.
void pack_four_bytes(const std::byte* rows, size_t stride, size_t units, size_t readable,
                     std::byte* tile) {
  for (size_t line = 0; line < units; line += kLineUnits4) {
    const size_t end = std::min(units, line + kLineUnits4);
    for (size_t row = 0; row < kPanelRows; row += 4) {
      const std::byte* four = rows + row * stride;
      size_t unit = line;
      for (; unit + 4 <= end; unit += 4) {
        transpose_4_by_4(four + unit * 4, stride, 4, tile + unit * 64 + row * 4);
      }
      if (unit == end) continue;
      if (unit * 4 + 16 <= readable) {
        transpose_4_by_4(four + unit * 4, stride, end - unit, tile + unit * 64 + row * 4);
        continue;
      }
      for (size_t one = 0; one < 4; ++one) {
        scatter_units<4>(four + one * stride + unit * 4, end - unit,
                         tile + unit * 64 + (row + one) * 4);
      }
    }
  }
}

__m128i gather_two_bytes(const std::byte* rows, size_t stride) {
  __m128i unit = _mm_setzero_si128();
  const auto value = [&](size_t row) {
    int16_t bytes = 0;
    std::memcpy(&bytes, rows + row * stride, sizeof bytes);
    return bytes;
  };
  unit = _mm_insert_epi16(unit, value(0), 0);
  unit = _mm_insert_epi16(unit, value(1), 1);
  unit = _mm_insert_epi16(unit, value(2), 2);
  unit = _mm_insert_epi16(unit, value(3), 3);
  unit = _mm_insert_epi16(unit, value(4), 4);
  unit = _mm_insert_epi16(unit, value(5), 5);
  unit = _mm_insert_epi16(unit, value(6), 6);
  return _mm_insert_epi16(unit, value(7), 7);
}

void pack_two_bytes(const std::byte* rows, size_t stride, size_t units, std::byte* tile) {
  for (size_t line = 0; line < units; line += kLineUnits2) {
    const size_t end = std::min(units, line + kLineUnits2);
    for (size_t row = 0; row < kPanelRows; row += 8) {
      const std::byte* eight = rows + row * stride;
      size_t unit = line;
      for (; unit + 8 <= end; unit += 8) {
        transpose_8_by_8(eight + unit * 2, stride, tile + unit * 32 + row * 2);
      }
      for (; unit < end; ++unit) {
        store_bytes(tile + unit * 32 + row * 2, gather_two_bytes(eight + unit * 2, stride));
      }
    }
  }
}

// Exchanges the bits whose place has bit kHigh clear and bit kLow set with those that have it the
// other way round.
template <int kHigh, int kLow>
__m128i swap_place_bits(__m128i bits) {
  constexpr uint32_t kMask = [] {
    uint32_t mask = 0;
    for (uint32_t place = 0; place < 32; ++place) {
      if (((place >> kHigh) & 1U) == 0 && ((place >> kLow) & 1U) == 1) mask |= 1U << place;
    }
    return mask;
  }();
  constexpr int kDistance = (1 << kHigh) - (1 << kLow);
  const __m128i different = _mm_and_si128(_mm_xor_si128(_mm_srli_epi32(bits, kDistance), bits),
                                          _mm_set1_epi32(static_cast<int>(kMask)));
  return _mm_xor_si128(bits, _mm_xor_si128(different, _mm_slli_epi32(different, kDistance)));
}

// spread_bits() of 16 rows: place g2 g1 g0 b1 b0 to b1 b0 g2 g1 g0.
void pack_bit_planes(const std::byte* rows, size_t stride, std::byte* tile) {
  for (size_t row = 0; row < kPanelRows; ++row) {
    std::memcpy(tile + row * 4, rows + row * stride, 4);
  }
  for (size_t row = 0; row < kPanelRows; row += 4) {
    __m128i bits = load_bytes(tile + row * 4);
    bits = swap_place_bits<4, 1>(bits);
    bits = swap_place_bits<3, 0>(bits);
    bits = swap_place_bits<2, 1>(bits);
    bits = swap_place_bits<1, 0>(bits);
    store_bytes(tile + row * 4, bits);
  }
}

// One block of 16 rows.
void pack_block(std::span<const BlockPart> parts, const std::byte* rows, size_t stride,
                size_t block_bytes, std::byte* tile) {
  for (const BlockPart& part : parts) {
    const size_t bytes = part.end - part.begin;
    switch (part.unit) {
      case BlockUnit::kFourBytes:
        pack_four_bytes(rows + part.begin, stride, bytes / 4, block_bytes - part.begin, tile);
        break;
      case BlockUnit::kTwoBytes:
        pack_two_bytes(rows + part.begin, stride, bytes / 2, tile);
        break;
      case BlockUnit::kOneByte:
        for (size_t row = 0; row < kPanelRows; ++row) {
          scatter_units<1>(rows + row * stride + part.begin, bytes, tile + row);
        }
        break;
      case BlockUnit::kBitPlane:
        pack_bit_planes(rows + part.begin, stride, tile);
        break;
    }
    tile += bytes * kPanelRows;
  }
}

// One block of the file, of each of some rows, as memory holds it. Encoded in a place of its own
// where that is not as the file has it.
class RowBlocks {
 public:
  // `rows`: the first row's first block, `stride` from one row to the next.
  RowBlocks(const FormatTraits& format, const std::byte* rows, size_t stride, size_t row_count)
      : format_(format), rows_(rows), stride_(stride), row_count_(row_count) {
    CHECK(bytes() <= kBytesMost, "a block of {} bytes", bytes());
  }

  // Takes this block of all rows.
  void read(size_t block) {
    blocks_ = rows_ + block * format_.block_bytes;
    if (format_.packed.encode == nullptr) return;
    for (size_t row = 0; row < row_count_; ++row) {
      format_.packed.encode(blocks_ + row * stride_, format_.block_elements,
                            encoded_ + row * kBytesMost);
    }
    blocks_ = encoded_;
  }

  const std::byte* blocks() const { return blocks_; }
  size_t stride() const { return format_.packed.encode == nullptr ? stride_ : kBytesMost; }
  // A row's bytes; and how many may be read from there on.
  size_t bytes() const {
    return format_.block_elements / format_.packed.elements * format_.packed.bytes;
  }
  size_t readable() const { return format_.packed.encode == nullptr ? bytes() : kBytesMost; }

 private:
  static constexpr size_t kBytesMost = 256;

  const FormatTraits& format_;
  const std::byte* rows_;
  size_t stride_;
  size_t row_count_;
  const std::byte* blocks_ = nullptr;
  alignas(16) std::byte encoded_[kPanelRows * kBytesMost];
};

void pack_whole(Format format, size_t columns, const std::byte* rows, size_t stride,
                std::byte* panel) {
  const FormatTraits& format_traits = traits(format);
  const PackedBlock& packed = format_traits.packed;
  if (!format_traits.is_quantized()) {
    // Blocks of one number: all of the row is one part.
    const BlockPart part = {0, columns * format_traits.block_bytes, packed.parts.front().unit};
    return pack_block({&part, 1}, rows, stride, part.end, panel);
  }
  RowBlocks blocks(format_traits, rows, stride, kPanelRows);
  const size_t count = columns / format_traits.block_elements;
  for (size_t block = 0; block < count; ++block) {
    blocks.read(block);
    for (size_t begin = 0; begin < blocks.bytes(); begin += packed.bytes) {
      pack_block(packed.parts, blocks.blocks() + begin, blocks.stride(), blocks.readable() - begin,
                 panel);
      panel += packed.bytes * kPanelRows;
    }
  }
}

}  // namespace

void pack_panel(Format format, size_t columns, const std::byte* rows, size_t row_count,
                std::byte* panel) {
  pack_lanes(format, columns, rows, row_bytes(format, columns), 0, row_count, panel);
  clear_lanes(format, columns, row_count, panel);
}

void pack_lanes(Format format, size_t columns, const std::byte* rows, size_t stride_bytes,
                size_t lane, size_t row_count, std::byte* panel) {
  CHECK(row_count >= 1 && lane + row_count <= kPanelRows, "{} rows from row {} of a panel on",
        row_count, lane);
  if (row_count == kPanelRows) return pack_whole(format, columns, rows, stride_bytes, panel);
  const FormatTraits& format_traits = traits(format);
  const PackedBlock& packed = format_traits.packed;
  RowBlocks blocks(format_traits, rows, stride_bytes, row_count);
  const size_t count = columns / format_traits.block_elements;
  for (size_t block = 0; block < count; ++block) {
    blocks.read(block);
    for (size_t begin = 0; begin < blocks.bytes(); begin += packed.bytes) {
      for (const BlockPart& part : packed.parts) {
        for (size_t row = 0; row < row_count; ++row) {
          pack_part_of_row(part, blocks.blocks() + row * blocks.stride() + begin,
                           panel + (lane + row) * unit_bytes(part.unit));
        }
        panel += (part.end - part.begin) * kPanelRows;
      }
    }
  }
}

void clear_lanes(Format format, size_t columns, size_t lane, std::byte* panel) {
  if (lane == kPanelRows) return;
  const PackedBlock& packed = traits(format).packed;
  const size_t blocks = columns / packed.elements;
  for (size_t block = 0; block < blocks; ++block) {
    for (const BlockPart& part : packed.parts) {
      const size_t unit = unit_bytes(part.unit);
      for (size_t at = part.begin; at < part.end; at += unit) {
        std::memset(panel + lane * unit, 0, (kPanelRows - lane) * unit);
        panel += kPanelRows * unit;
      }
    }
  }
}

}  // namespace lockstep
