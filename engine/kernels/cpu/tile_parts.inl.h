// Blocks, and reading that tiles of several formats share; see tiles.inl.h. Written over the small
// vector types.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/activation.h"
#include "engine/kernels/packed_matrix.h"

namespace lockstep {
namespace {

constexpr size_t kGroups = 8;          // groups of 4 columns in a block of 32
constexpr size_t kGroupBytes = 64;     // one group of 16 rows
constexpr size_t kRowScaleBytes = 32;  // one half for each of 16 rows
constexpr uint32_t kNibbles = 0x0F0F0F0FU;

struct Block {
  Bytes weights[kGroups];
  F32x16 scale;
  F32x16 second;
};

// With kHalves and kMinimums: each half's minimum, times the factor that makes it one.
struct MinimumsBlock : Block {
  F32x16 first_minimum;
  F32x16 second_minimum;
};

struct NoScales {};

inline F32x16 load_scales(const std::byte* p) {
  return load_half(reinterpret_cast<const uint16_t*>(p));
}

// 16 bytes per row whose low nibbles are the first half's columns and the high ones the second's.
inline void unpack_nibbles(const std::byte* tile, Block& block) {
#pragma GCC unroll 4
  for (size_t group = 0; group < 4; ++group) {
    const Bytes both = load_bytes(tile + group * kGroupBytes);
    block.weights[group] = bit_and(both, kNibbles);
    block.weights[group + 4] = bit_and(shift_right<4>(both), kNibbles);
  }
}

// Four blocks' values from the four bytes of each lane.
inline void scale_bytes(F32x16 factor, Bytes bytes, F32x16* products) {
  products[0] = mul(factor, to_float(unsigned_byte<0>(bytes)));
  products[1] = mul(factor, to_float(unsigned_byte<1>(bytes)));
  products[2] = mul(factor, to_float(unsigned_byte<2>(bytes)));
  products[3] = mul(factor, to_float(unsigned_byte<3>(bytes)));
}

}  // namespace
}  // namespace lockstep
