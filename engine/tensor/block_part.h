// How memory holds the blocks of a format, and how GPUs do: what a format's file in formats/ says
// of itself beside its exact values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

// Units of a block that stay together when 16 rows' blocks are interleaved. Those of a bit plane
// are four bytes, one bit for each of 32 columns, whose bits change places (see packed_matrix.cpp).
enum class BlockUnit : uint8_t { kOneByte, kTwoBytes, kFourBytes, kBitPlane };

constexpr size_t unit_bytes(BlockUnit unit) {
  switch (unit) {
    case BlockUnit::kOneByte:
      return 1;
    case BlockUnit::kTwoBytes:
      return 2;
    case BlockUnit::kFourBytes:
    case BlockUnit::kBitPlane:
      break;
  }
  return 4;
}

// A part of a block in memory: where it begins and ends, in bytes.
struct BlockPart {
  size_t begin = 0;
  size_t end = 0;
  BlockUnit unit = BlockUnit::kFourBytes;
};

// A format's block as memory holds it: the file's bytes, or the same numbers in other bytes, which
// kernels read faster.
struct PackedBlock {
  uint32_t elements = 0;  // the file's block is one or several of these
  uint32_t bytes = 0;
  std::span<const BlockPart> parts = {};  // in the order in which a panel holds them
  // From `count` elements in the file's blocks; none: they are the file's bytes.
  void (*encode)(const std::byte* blocks, size_t count, std::byte* packed) = nullptr;
  // Exactly the values of the file's blocks.
  void (*dequantize)(const std::byte* packed, size_t count, float* values) = nullptr;
};

// The places of a block's parts, in the file and in a GpuMatrix (engine/kernels/gpu_tile.h).
struct GpuLayout {
  uint32_t block_elements;  // of the file; 0: GPUs have no kernels for the format
  uint32_t block_bytes;
  uint32_t unit_tiles;        // tiles whose scales lie together: what a warp takes at a time
  uint32_t quant_bits;        // of a weight in the first plane: 2, 4, 8, 16 or 32
  uint32_t high_bits;         // ... in the second: 0, 1 or 2
  uint32_t quants_begin;      // in a block of the file
  uint32_t high_begin;        // in a block of the file
  uint32_t scale_bytes;       // of a row and unit, in the third plane
  uint32_t block_scales;      // ... of a block of the file
  uint32_t scales_begin;      // in a block of the file
  uint32_t factor_bytes;      // of a row and 256 columns, in the fourth plane: halves of Q6_K, Q2_K
  uint32_t scale_columns;     // that share a scale: 16 or 32; the columns of a tile lie accordingly
  uint32_t factor_begin = 0;  // in a block of the file: the halves

  static constexpr uint32_t kTileRows = 16;
  static constexpr uint32_t kTileColumns = 64;
  static constexpr uint32_t kLanes = 32;

  constexpr uint32_t unit_columns() const { return unit_tiles * kTileColumns; }
  constexpr uint32_t tile_bytes() const { return kTileRows * kTileColumns / 8 * quant_bits; }
  constexpr uint32_t quant_unit_bytes() const { return unit_tiles * tile_bytes(); }
  // Quants of a tile, of a lane, that it reads at once.
  constexpr uint32_t quant_lane_bytes() const { return quant_bits == 2 ? 8 : 16; }
  // High bits of a unit, of a lane: it has them side by side.
  constexpr uint32_t high_lane_bytes() const { return unit_tiles * 4 * high_bits; }
  constexpr uint32_t high_unit_bytes() const { return high_lane_bytes() * kLanes; }
};

}  // namespace lockstep
