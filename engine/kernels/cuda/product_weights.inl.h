// A unit's weights on their way to the tile products: copied into shared memory, a stage at a time,
// and made bf16. Included by product.inl.h.
//
// A quant of at most 7 bits that stands for itself is 0x4300 | quant as bf16: 128 + quant, exactly.
// Tile products take it as it is. An instruction for every two weights would take the 128 and the
// format's offset away; of 32 columns and 8 tokens, two tile products do it for all rows
// (kBiasTaken). Of many tokens a block does that once for all of its warps (many_units.inl.h).
#pragma once

#include "engine/kernels/cuda/weight_scales.inl.h"
#include "engine/kernels/gpu_tile.h"

namespace lockstep {
namespace {

constexpr unsigned kProductWarps = 8;
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
  // If scales take some work to unpack, a lane does it for a row, a tile at a time, and leaves them
  // for all: of Q4_K and Q5_K in place of the scales as they came, which it keeps.
  static constexpr bool kUnpacks = kLayout.block_elements == 256;
  static constexpr unsigned kUnpackedBytes =  // of a row
      kTileScales * (has_minimums(kFormat) ? 2 : 1) * sizeof(float);
  static constexpr bool kInPlace = has_minimums(kFormat) && kLayout.scale_bytes == kUnpackedBytes;
  static constexpr unsigned kUnpacked =
      kInPlace ? kScales : kFactors + kBlockRows * kLayout.factor_bytes;
  static constexpr unsigned kBytes = kUnpacks && !kInPlace
                                         ? kUnpacked + kBlockRows * kUnpackedBytes
                                         : kFactors + kBlockRows * kLayout.factor_bytes;
  static_assert(kBytes % 16 == 0);
  // The parts of F16 are multiplied each by itself: a weight is the sum of two bf16.
  static constexpr unsigned kParts = kFormat == Format::kF16 ? 2 : 1;
};

// The addresses of a block's two panels: what this lane copies of the unit that its warp asks for
// next. The warp takes every kProductWarps-th.
struct BlockWeights {
  const std::byte* quants[kBlockPanels];
  const std::byte* high[kBlockPanels];
  const std::byte* scales;  // of row lane_index() of the 32
  const std::byte* factors;
};

// `kBytes` a lane: 4, 8 or 16.
template <unsigned kBytes>
GPU_FUNCTION void begin_copy(std::byte* shared, const std::byte* source) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 16) begin_copy_16(shared, source);
  if constexpr (kBytes == 8) begin_copy_8(shared, source);
  if constexpr (kBytes == 4) begin_copy_4(shared, source);
}

// Asks for the warp's next unit.
template <Format kFormat>
GPU_FUNCTION void begin_unit(BlockWeights& weights, std::byte* stage, unsigned lane_byte) {
  using S = Stage<kFormat>;
  const unsigned lane = lane_byte / 16;
  GPU_UNROLL
  for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
    GPU_UNROLL
    for (unsigned piece = 0; piece < S::kQuantBytes; piece += 512) {
      begin_copy_16(stage + panel * S::kQuantBytes + piece + lane_byte,
                    weights.quants[panel] + piece);
    }
    weights.quants[panel] += kProductWarps * S::kQuantBytes;
    if constexpr (S::kHighBytes > 0) {
      constexpr unsigned kLaneBytes = S::kLayout.high_lane_bytes();
      begin_copy<kLaneBytes>(stage + S::kHigh + panel * S::kHighBytes + lane * kLaneBytes,
                             weights.high[panel]);
      weights.high[panel] += kProductWarps * S::kHighBytes;
    }
  }
  constexpr unsigned kScaleBytes = S::kLayout.scale_bytes;
  if constexpr (kScaleBytes > 0) {
    begin_copy<kScaleBytes>(stage + S::kScales + lane * kScaleBytes, weights.scales);
    weights.scales += kProductWarps * kGpuPanelRows * kScaleBytes;
  }
  if constexpr (S::kLayout.factor_bytes > 0) {
    constexpr unsigned kFactorBytes = S::kLayout.factor_bytes;
    static_assert(kProductWarps % kGpuFactorUnits == 0);
    static_assert(kFactorBytes == 2 || kFactorBytes == 4);
    // If they are of 2 bytes, those of two rows by one lane.
    if (lane % (4 / kFactorBytes) == 0) {
      begin_copy_4(stage + S::kFactors + lane * kFactorBytes, weights.factors);
    }
    weights.factors += kProductWarps / kGpuFactorUnits * kGpuPanelRows * kFactorBytes;
  }
}

template <Format kFormat>
GPU_FUNCTION void begin_unit(BlockWeights& weights, std::byte* stage) {
  begin_unit<kFormat>(weights, stage, lane_index() * 16);
}

// Whether what tile products multiply is quant + quant_bias().
template <Format kFormat>
constexpr bool kIsBiased = gpu_layout(kFormat).quant_bits <= 4 && !has_table(kFormat);
// The excess of each quant, the format's offset included. Minimums take it away: w = scale * quant
// + minimum is scale * (quant + bias) + (minimum - bias * scale), and the sum of the x, which
// minimums are multiplied with, is at hand. Without them the sum of quant * x begins at -bias times
// that of the x.
template <Format kFormat>
constexpr uint32_t quant_bias() {
  return 128 + quant_offset<kFormat>();
}
// -bias twice, as bf16. One of at most 255 is its last seven bits after a 1.
template <Format kFormat>
constexpr uint32_t kBiasTaken = (0xC300U | quant_offset<kFormat>()) * 0x00010001U;

// Register `index` of step `step` of a tile of quants of 2 or 4 bits, and their high bits.
// `kBiased`: 128 is left in them, and the offset.
template <Format kFormat, bool kBiased>
GPU_FUNCTION uint32_t quant_pair(uint32_t word, uint32_t high, unsigned step, unsigned index) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  constexpr uint32_t kQuantMask = ((1U << kLayout.quant_bits) - 1) * 0x00010001U;
  uint32_t pair =
      mask_and_set(word >> gpu_quant_place(kLayout, step, index, 0).shift, kQuantMask, 0x43004300U);
  if constexpr (kLayout.high_bits > 0) {
    constexpr uint32_t kMask = (1U << kLayout.high_bits) - 1;
    const unsigned shift = gpu_high_place(kLayout, 0, step, index, 0).shift;
    pair |= (high >> shift & kMask * 0x00010001U) << kLayout.quant_bits;
  }
  return kBiased ? pair : add_bf16_pairs(pair, kBiasTaken<kFormat>);
}

// Bytes 0 and 2 of a word, signed: the lower seven bits and 128, less 128 or 256.
GPU_FUNCTION uint32_t byte_pair(uint32_t word) {
  return add_bf16_pairs(mask_and_set(word, 0x007F007FU, 0x43004300U),
                        mask_and_set(word, 0x00800080U, 0xC300C300U));
}

// The four registers of a step of nibbles that stand for entries of a table.
template <Format kFormat>
GPU_FUNCTION void table_pairs(uint32_t word, uint32_t (&a)[4]) {
  // Nibbles 0 to 3, and then 4 to 7, pick an entry of the table's first eight and one of its last,
  // and by their highest bits one of both.
  const uint32_t places = word & 0x77777777U;
  const uint32_t halves = mask_and_set(word >> 1U, 0x44444444U, 0x32103210U);
  uint32_t entries[2];
  GPU_UNROLL
  for (unsigned four = 0; four < 2; ++four) {
    const uint32_t place = places >> (16 * four);
    entries[four] = pick_bytes(pick_bytes(kTableWord<kFormat, 0>, kTableWord<kFormat, 1>, place),
                               pick_bytes(kTableWord<kFormat, 2>, kTableWord<kFormat, 3>, place),
                               halves >> (16 * four));
  }
  const uint32_t first = pick_bytes(entries[0], entries[1], 0x5410U);
  const uint32_t second = pick_bytes(entries[0], entries[1], 0x7632U);
  a[0] = byte_pair(first);
  a[1] = byte_pair(first >> 8U);
  a[2] = byte_pair(second);
  a[3] = byte_pair(second >> 8U);
}

// Whether a lane reads its quants of a tile at once.
template <Format kFormat>
constexpr bool kIsSmall = gpu_layout(kFormat).quant_bits <= 4;
// A lane's quants of a tile, of formats that are.
template <Format kFormat>
using LaneQuants = std::conditional_t<gpu_layout(kFormat).quant_bits == 2, Words2, Words4>;

// The A operand of step `step` of tile `tile`; `quants`: the lane's of the tile.
template <Format kFormat, bool kBiased>
GPU_FUNCTION void read_quants(const LaneQuants<kFormat>& quants, const std::byte* high_bits,
                              unsigned tile, unsigned step, uint32_t (&a)[4]) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  const uint32_t own = quants.words[gpu_quant_place(kLayout, step, 0, 0).word];
  if constexpr (has_table(kFormat)) return table_pairs<kFormat>(own, a);
  uint32_t high = 0;
  if constexpr (kLayout.high_bits > 0) {
    const unsigned word = gpu_high_place(kLayout, tile, step, 0, 0).word;
    high = load_4(high_bits + gpu_high_byte(kLayout, lane_index(), word));
  }
  GPU_UNROLL
  for (unsigned index = 0; index < 4; ++index) {
    a[index] = quant_pair<kFormat, kBiased>(own, high, step, index);
  }
}

// The A operand of step `step` of tile `tile` of a unit whose quants and high bits begin there, as
// parts whose sum is the weight (or the quant, with its bias where it is `kBiased`).
template <Format kFormat, bool kBiased>
GPU_FUNCTION void read_operand(const std::byte* quants, const std::byte* high_bits, unsigned tile,
                               unsigned step, uint32_t (&a)[Stage<kFormat>::kParts][4]) {
  constexpr GpuLayout kLayout = gpu_layout(kFormat);
  quants += tile * kLayout.tile_bytes() + lane_index() * kLayout.quant_lane_bytes();
  if constexpr (kLayout.quant_bits == 2) {
    read_quants<kFormat, kBiased>(load_8(quants), high_bits, tile, step, a[0]);
  } else if constexpr (kLayout.quant_bits == 4) {
    read_quants<kFormat, kBiased>(load_16(quants), high_bits, tile, step, a[0]);
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

// Likewise, of the unit in shared memory, for tile products.
template <Format kFormat>
GPU_FUNCTION void read_weights(const std::byte* stage, unsigned panel, unsigned tile, unsigned step,
                               uint32_t (&a)[Stage<kFormat>::kParts][4]) {
  using S = Stage<kFormat>;
  read_operand<kFormat, kIsBiased<kFormat>>(
      stage + panel * S::kQuantBytes, stage + S::kHigh + panel * S::kHighBytes, tile, step, a);
}

// The data of a unit that lane i keeps to unpack the scales of row i of 32.
template <Format kFormat>
struct RowScales {
  KScales row;
};
template <>
struct RowScales<Format::kQ6_K> {
  Words2 scales;
  float factor;
};
template <>
struct RowScales<Format::kQ2_K> {
  Words2 scales;
  float scale_factor;
  float minimum_factor;
};

template <Format kFormat>
requires kHasSixBitScales<kFormat>
struct RowScales<kFormat> {
  Words2 scales;
};

// Called by all lanes before the unit's first unpack_scales().
template <Format kFormat>
GPU_FUNCTION RowScales<kFormat> read_row_scales(const std::byte* stage) {
  using S = Stage<kFormat>;
  const std::byte* scales = stage + S::kScales + lane_index() * S::kLayout.scale_bytes;
  if constexpr (kFormat == Format::kQ6_K) {
    const std::byte* factor = stage + S::kFactors + lane_index() * S::kLayout.factor_bytes;
    return {load_8(scales), from_half(*reinterpret_cast<const uint16_t*>(factor))};
  } else if constexpr (kFormat == Format::kQ2_K) {
    const uint32_t halves = load_4(stage + S::kFactors + lane_index() * S::kLayout.factor_bytes);
    return {load_8(scales), half_of(halves, 0), half_of(halves, 1)};
  } else if constexpr (kHasSixBitScales<kFormat>) {
    return {load_8(scales)};
  } else {
    return {unpack_k_scales(load_16(scales))};
  }
}

// The scale as tile products want it.
template <Format kFormat>
GPU_FUNCTION Scale biased(const Scale& scale) {
  constexpr auto kBias = static_cast<float>(quant_bias<kFormat>());
  return {scale.scale, multiply_add(-kBias, scale.scale, scale.minimum)};
}

// Leaves the scales of tile `tile` of the unit where read_two_scales() and read_narrow_scales()
// find them, [row][scale of the tile], of Q2_K [half of the tile][row][scale]. All lanes have read
// the last tile's.
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
  } else if constexpr (kFormat == Format::kQ2_K) {
    const uint32_t word = tile == 0 ? own.scales.words[0] : own.scales.words[1];
    GPU_UNROLL
    for (unsigned half = 0; half < 2; ++half) {
      Scale scales[2];
      GPU_UNROLL
      for (unsigned index = 0; index < 2; ++index) {
        scales[index] = biased<kFormat>(
            q2_k_scale(word >> (16 * half + 8 * index), own.scale_factor, own.minimum_factor));
      }
      store_16(unpacked + (half * kBlockRows + lane_index()) * sizeof(Words4),
               {{float_to_bits(scales[0].scale), float_to_bits(scales[0].minimum),
                 float_to_bits(scales[1].scale), float_to_bits(scales[1].minimum)}});
    }
  } else if constexpr (kFormat == Format::kQ3_K) {
    Words4 scales;
    GPU_UNROLL
    for (unsigned index = 0; index < 4; ++index) {
      scales.words[index] = float_to_bits(six_bit_scale(own.scales, 4 * tile + index));
    }
    store_16(unpacked + lane_index() * sizeof(Words4), scales);
  } else if constexpr (kFormat == Format::kIq4Xs) {
    store_8(unpacked + lane_index() * sizeof(Words2),
            {{float_to_bits(six_bit_scale(own.scales, 2 * tile)),
              float_to_bits(six_bit_scale(own.scales, 2 * tile + 1))}});
  } else {
    const TwoScales scales = k_tile_scales(own.row, tile);
    const Scale first = biased<kFormat>(scales.halves[0]);
    const Scale second = biased<kFormat>(scales.halves[1]);
    store_16(unpacked + lane_index() * sizeof(Words4),
             {{float_to_bits(first.scale), float_to_bits(first.minimum),
               float_to_bits(second.scale), float_to_bits(second.minimum)}});
  }
}

// The scales of row `row` (of 32) for the halves of tile `tile` of the unit: of 32 columns each.
template <Format kFormat>
GPU_FUNCTION TwoScales read_two_scales(const std::byte* stage, unsigned row, unsigned tile) {
  using S = Stage<kFormat>;
  if constexpr (kFormat == Format::kIq4Xs) {
    const Words2 words = load_8(stage + S::kUnpacked + row * sizeof(Words2));
    return {{{bits_to_float(words.words[0]), 0}, {bits_to_float(words.words[1]), 0}}};
  } else if constexpr (kFormat == Format::kMxfp4) {
    const uint32_t word = load_4(stage + S::kScales + row * S::kLayout.scale_bytes);
    return {{{exponent_scale_of(word, 2 * tile), 0}, {exponent_scale_of(word, 2 * tile + 1), 0}}};
  } else if constexpr (S::kUnpacks) {
    const Words4 words = load_16(stage + S::kUnpacked + row * sizeof(Words4));
    return {{{bits_to_float(words.words[0]), bits_to_float(words.words[1])},
             {bits_to_float(words.words[2]), bits_to_float(words.words[3])}}};
  } else {
    const std::byte* scales = stage + S::kScales + row * S::kLayout.scale_bytes;
    if constexpr (has_minimums(kFormat)) {
      const Words2 words = load_8(scales + tile * 8);
      return {{biased<kFormat>({half_of(words.words[0], 0), half_of(words.words[0], 1)}),
               biased<kFormat>({half_of(words.words[1], 0), half_of(words.words[1], 1)})}};
    } else {
      const uint32_t word = load_4(scales + tile * 4);
      return {{{half_of(word, 0), 0}, {half_of(word, 1), 0}}};
    }
  }
}

// If 16 columns share a scale: those of some steps of a tile that a lane multiplies with, of the
// rows lane / 4 and 8 more of both panels. Of formats of 2 bits the registers do for two steps.
template <Format kFormat>
constexpr unsigned kNarrowSteps = gpu_layout(kFormat).quant_bits == 2 ? 2 : kGpuSteps;
using StepScales = Scale[kBlockPanels][2];
template <Format kFormat>
using NarrowScales = StepScales[kNarrowSteps<kFormat>];

// Reads those of step `step` of the tile and of the next ones.
template <Format kFormat>
GPU_FUNCTION void read_narrow_scales(const std::byte* stage, unsigned step,
                                     NarrowScales<kFormat>& scales) {
  const unsigned row = lane_index() / 4;
  const std::byte* const unpacked = stage + Stage<kFormat>::kUnpacked + row * sizeof(Words4);
  GPU_UNROLL
  for (unsigned index = 0; index < kBlockPanels * 2; ++index) {
    const std::byte* const own = unpacked + index * (8 * sizeof(Words4));
    Scale& first = scales[0][index / 2][index % 2];
    Scale& second = scales[1][index / 2][index % 2];
    if constexpr (has_minimums(kFormat)) {
      const Words4 words = load_16(own + step / 2 * (kBlockRows * sizeof(Words4)));
      first = {bits_to_float(words.words[0]), bits_to_float(words.words[1])};
      second = {bits_to_float(words.words[2]), bits_to_float(words.words[3])};
    } else if constexpr (kNarrowSteps<kFormat> == 2) {
      const Words2 words = load_8(own + step / 2 * sizeof(Words2));
      first = {bits_to_float(words.words[0]), 0};
      second = {bits_to_float(words.words[1]), 0};
    } else {
      const Words4 words = load_16(own);
      GPU_UNROLL
      for (unsigned of_step = 0; of_step < kGpuSteps; ++of_step) {
        scales[of_step][index / 2][index % 2] = {bits_to_float(words.words[of_step]), 0};
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
