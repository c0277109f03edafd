// A unit's weights on their way to the tile products: copied into shared memory, a stage at a time,
// and made bf16. Included by product.inl.h.
//
// A quant of at most 7 bits is 0x4300 | quant as bf16: 128 + quant, exactly; one addition takes the
// 128 and the format's offset away.
#pragma once

#include "engine/kernels/cuda/weight_scales.inl.h"
#include "engine/kernels/gpu_tile.h"

namespace lockstep {
namespace {

constexpr unsigned kBlockPanels = 2;
constexpr unsigned kBlockRows = kBlockPanels * kGpuPanelRows;

// How a unit of both panels lies in shared memory.
template <Format kFormat>
struct Stage {
  static constexpr GpuLayout kLayout = gpu_layout(kFormat);
  static constexpr unsigned kQuantBytes = kLayout.quant_unit_bytes();  // of a panel
  static constexpr unsigned kHighBytes = kLayout.high_unit_bytes();
  static constexpr unsigned kHigh = kBlockPanels * kQuantBytes;
  static constexpr unsigned kScales = kHigh + kBlockPanels * kHighBytes;
  static constexpr unsigned kFactors = kScales + kBlockRows * kLayout.scale_bytes;
  static constexpr unsigned kBytes = kFactors + kBlockRows * kLayout.factor_bytes;
  static_assert(kBytes % 16 == 0);
  // What of F16 is multiplied by itself: a weight is the sum of two bf16.
  static constexpr unsigned kParts = kFormat == Format::kF16 ? 2 : 1;
};

// Where the two panels of a block lie: what this lane copies of their first unit.
struct BlockWeights {
  const std::byte* quants[kBlockPanels];
  const std::byte* high[kBlockPanels];
  const std::byte* scales;  // of row lane_index() of the 32
  const std::byte* factors;
};

template <Format kFormat>
GPU_FUNCTION void begin_unit(const BlockWeights& weights, size_t unit, std::byte* stage) {
  using S = Stage<kFormat>;
  const unsigned lane = lane_index();
  GPU_UNROLL
  for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
    const std::byte* quants = weights.quants[panel] + unit * S::kQuantBytes;
    GPU_UNROLL
    for (unsigned piece = 0; piece < S::kQuantBytes; piece += 512) {
      begin_copy_16(stage + panel * S::kQuantBytes + piece + lane * 16, quants + piece);
    }
    if constexpr (S::kHighBytes > 0) {
      std::byte* high = stage + S::kHigh + panel * S::kHighBytes;
      const std::byte* source = weights.high[panel] + unit * S::kHighBytes;
      if constexpr (S::kLayout.high_lane_bytes() == 16) {
        begin_copy_16(high + lane * 16, source);
      } else {
        begin_copy_4(high + lane * 4, source);
      }
    }
  }
  constexpr unsigned kScaleBytes = S::kLayout.scale_bytes;
  std::byte* scales = stage + S::kScales + lane * kScaleBytes;
  const std::byte* source = weights.scales + unit * (kGpuPanelRows * kScaleBytes);
  if constexpr (kScaleBytes == 16) begin_copy_16(scales, source);
  if constexpr (kScaleBytes == 8) begin_copy_8(scales, source);
  if constexpr (kScaleBytes == 4) begin_copy_4(scales, source);
  if constexpr (S::kLayout.factor_bytes > 0) {
    constexpr unsigned kFactorBytes = S::kLayout.factor_bytes;
    // Those of two rows by one lane.
    if (lane % 2 == 0) {
      begin_copy_4(stage + S::kFactors + lane * kFactorBytes,
                   weights.factors + unit / kGpuFactorUnits * (kGpuPanelRows * kFactorBytes));
    }
  }
}

// Register `index` of step `step` of a tile of 4-bit quants, and their high bits.
template <Format kFormat>
GPU_FUNCTION uint32_t nibble_pair(uint32_t word, uint32_t high, unsigned step, unsigned index) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  // -(128 + offset) twice.
  constexpr uint32_t kOffset = (0xC300U | quant_offset<kFormat>()) * 0x00010001U;
  uint32_t pair = (word >> (4 * index) & 0x000F000FU) | 0x43004300U;
  if constexpr (kLayout.high_bits > 0) {
    constexpr uint32_t kMask = (1U << kLayout.high_bits) - 1;
    const unsigned shift = gpu_high_place(kLayout, 0, step, index, 0).shift;
    pair |= (high >> shift & kMask * 0x00010001U) << 4U;
  }
  return add_bf16_pairs(pair, kOffset);
}

// Bytes 0 and 2 of a word, signed: the lower seven bits and 128, less 128 or 256.
GPU_FUNCTION uint32_t byte_pair(uint32_t word) {
  return add_bf16_pairs((word & 0x007F007FU) | 0x43004300U, (word & 0x00800080U) | 0xC300C300U);
}

// The A operand of step `step` of tile `tile`, as parts whose sum is the weight (or the quant).
template <Format kFormat>
GPU_FUNCTION void read_weights(const std::byte* stage, unsigned panel, unsigned tile, unsigned step,
                               uint32_t (&a)[Stage<kFormat>::kParts][4]) {
  using S = Stage<kFormat>;
  constexpr GpuLayout kLayout = S::kLayout;
  const std::byte* quants =
      stage + panel * S::kQuantBytes + tile * kLayout.tile_bytes() + lane_index() * 16;
  if constexpr (kLayout.quant_bits == 4) {
    const uint32_t word = load_16(quants).words[step];
    uint32_t high = 0;
    if constexpr (kLayout.high_bits > 0) {
      high = load_4(
          stage + S::kHigh + panel * S::kHighBytes +
          gpu_high_byte(kLayout, lane_index(), gpu_high_place(kLayout, tile, step, 0, 0).word));
    }
    GPU_UNROLL
    for (unsigned index = 0; index < 4; ++index) {
      a[0][index] = nibble_pair<kFormat>(word, high, step, index);
    }
  } else if constexpr (kLayout.quant_bits == 8) {
    const Words4 words = load_16(quants + step / 2 * 512);
    GPU_UNROLL
    for (unsigned index = 0; index < 4; ++index) {
      a[0][index] = byte_pair(words.words[step % 2 * 2 + index / 2] >> (8 * (index % 2)));
    }
  } else {
    const Words4 words = load_16(quants + step * 512);
    GPU_UNROLL
    for (unsigned index = 0; index < 4; ++index) {
      const uint32_t word = words.words[index];
      if constexpr (kFormat == Format::kF16) {
        const float lower = from_half(static_cast<uint16_t>(word));
        const float upper = from_half(static_cast<uint16_t>(word >> 16U));
        const uint32_t first = bf16_pair(lower, upper);
        a[0][index] = first;
        a[1][index] = bf16_pair(lower - bits_to_float(first << 16U),
                                upper - bits_to_float(first & 0xFFFF0000U));
      } else {
        a[0][index] = word;
      }
    }
  }
}

// The scale of row `row` (of 32) for scale `index` of the unit.
template <Format kFormat>
GPU_FUNCTION Scale read_scale(const std::byte* stage, unsigned row, unsigned index) {
  using S = Stage<kFormat>;
  return scale_of<kFormat>(stage + S::kScales + row * S::kLayout.scale_bytes,
                           stage + S::kFactors + row * S::kLayout.factor_bytes, index);
}

}  // namespace
}  // namespace lockstep
