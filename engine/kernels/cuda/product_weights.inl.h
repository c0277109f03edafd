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
  static constexpr unsigned kTileScales = kGpuTileColumns / kLayout.scale_columns;
  static constexpr unsigned kQuantBytes = kLayout.quant_unit_bytes();  // of a panel
  static constexpr unsigned kHighBytes = kLayout.high_unit_bytes();
  static constexpr unsigned kHigh = kBlockPanels * kQuantBytes;
  static constexpr unsigned kScales = kHigh + kBlockPanels * kHighBytes;
  static constexpr unsigned kFactors = kScales + kBlockRows * kLayout.scale_bytes;
  // Where scales take some work to unpack, a lane does it for a row, a tile at a time, and leaves
  // them for all: with minimums in place of the scales as they came, which it keeps.
  static constexpr bool kUnpacks = kLayout.block_elements == 256;
  static constexpr unsigned kUnpacked =
      has_minimums(kFormat) ? kScales : kFactors + kBlockRows * kLayout.factor_bytes;
  static constexpr unsigned kBytes = kUnpacks && !has_minimums(kFormat)
                                         ? kUnpacked + kBlockRows * kTileScales * sizeof(float)
                                         : kFactors + kBlockRows * kLayout.factor_bytes;
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
  uint32_t pair = mask_and_set(word >> (4 * index), 0x000F000FU, 0x43004300U);
  if constexpr (kLayout.high_bits > 0) {
    constexpr uint32_t kMask = (1U << kLayout.high_bits) - 1;
    const unsigned shift = gpu_high_place(kLayout, 0, step, index, 0).shift;
    pair |= (high >> shift & kMask * 0x00010001U) << 4U;
  }
  return add_bf16_pairs(pair, kOffset);
}

// Bytes 0 and 2 of a word, signed: the lower seven bits and 128, less 128 or 256.
GPU_FUNCTION uint32_t byte_pair(uint32_t word) {
  return add_bf16_pairs(mask_and_set(word, 0x007F007FU, 0x43004300U),
                        mask_and_set(word, 0x00800080U, 0xC300C300U));
}

// The A operand of step `step` of tile `tile` of a unit whose quants and high bits begin there, as
// parts whose sum is the weight (or the quant).
template <Format kFormat>
GPU_FUNCTION void read_operand(const std::byte* quants, const std::byte* high_bits, unsigned tile,
                               unsigned step, uint32_t (&a)[Stage<kFormat>::kParts][4]) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  quants += tile * kLayout.tile_bytes() + lane_index() * 16;
  if constexpr (kLayout.quant_bits == 4) {
    const uint32_t word = load_16(quants).words[step];
    uint32_t high = 0;
    if constexpr (kLayout.high_bits > 0) {
      high = load_4(high_bits + gpu_high_byte(kLayout, lane_index(),
                                              gpu_high_place(kLayout, tile, step, 0, 0).word));
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

// Likewise, of the unit in shared memory.
template <Format kFormat>
GPU_FUNCTION void read_weights(const std::byte* stage, unsigned panel, unsigned tile, unsigned step,
                               uint32_t (&a)[Stage<kFormat>::kParts][4]) {
  using S = Stage<kFormat>;
  read_operand<kFormat>(stage + panel * S::kQuantBytes, stage + S::kHigh + panel * S::kHighBytes,
                        tile, step, a);
}

// What lane i keeps of a unit to unpack the scales of row i of 32.
template <Format kFormat>
struct RowScales {
  KScales row;
};
template <>
struct RowScales<Format::kQ6_K> {
  Words2 scales;
  float factor;
};

// Called by all lanes before the unit's first unpack_scales().
template <Format kFormat>
GPU_FUNCTION RowScales<kFormat> read_row_scales(const std::byte* stage) {
  using S = Stage<kFormat>;
  const std::byte* scales = stage + S::kScales + lane_index() * S::kLayout.scale_bytes;
  if constexpr (kFormat == Format::kQ6_K) {
    const std::byte* factor = stage + S::kFactors + lane_index() * S::kLayout.factor_bytes;
    return {load_8(scales), from_half(*reinterpret_cast<const uint16_t*>(factor))};
  } else {
    return {unpack_k_scales(load_16(scales))};
  }
}

// Leaves the scales of tile `tile` of the unit where read_scale() and read_four_scales() find them:
// [scale of the tile][row], of Q6_K [row][scale]. All lanes have read the last tile's.
template <Format kFormat>
GPU_FUNCTION void unpack_scales(const RowScales<kFormat>& own, unsigned tile, std::byte* stage) {
  std::byte* unpacked = stage + Stage<kFormat>::kUnpacked;
  if constexpr (kFormat == Format::kQ6_K) {
    const uint32_t word = tile == 0 ? own.scales.words[0] : own.scales.words[1];
    Words4 scales;
    GPU_UNROLL
    for (unsigned index = 0; index < 4; ++index) {
      scales.words[index] = float_to_bits(multiply(own.factor, signed_byte(word, index)));
    }
    store_16(unpacked + lane_index() * sizeof(Words4), scales);
  } else {
    GPU_UNROLL
    for (unsigned half = 0; half < 2; ++half) {
      const Scale scale = k_scale(own.row, tile * 2 + half);
      store_8(unpacked + (half * kBlockRows + lane_index()) * sizeof(Words2),
              {{float_to_bits(scale.scale), float_to_bits(scale.minimum)}});
    }
  }
}

// The scale of row `row` (of 32) for scale `index` of the unit; of those that are unpacked, for one
// of the tile that it is in.
template <Format kFormat>
GPU_FUNCTION Scale read_scale(const std::byte* stage, unsigned row, unsigned index) {
  using S = Stage<kFormat>;
  if constexpr (S::kUnpacks) {
    const Words2 words =
        load_8(stage + S::kUnpacked + (index % 2 * kBlockRows + row) * sizeof(Words2));
    return {bits_to_float(words.words[0]), bits_to_float(words.words[1])};
  } else {
    return scale_of<kFormat>(stage + S::kScales + row * S::kLayout.scale_bytes, nullptr, index);
  }
}

// Of Q6_K: those of a tile's four steps.
GPU_FUNCTION Floats4 read_four_scales(const std::byte* stage, unsigned row) {
  const Words4 words = load_16(stage + Stage<Format::kQ6_K>::kUnpacked + row * sizeof(Words4));
  return {{bits_to_float(words.words[0]), bits_to_float(words.words[1]),
           bits_to_float(words.words[2]), bits_to_float(words.words[3])}};
}

}  // namespace
}  // namespace lockstep
