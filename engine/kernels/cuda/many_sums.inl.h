// The sums of a warp's 32 rows over all units of columns that its block takes, and how the block's
// shared memory holds what they are formed of. Included by many_product.inl.h.
#pragma once

#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/kernel_words.inl.h"
#include "engine/kernels/cuda/many_units.inl.h"
#include "engine/kernels/cuda/product_place.inl.h"

namespace lockstep {
namespace {

constexpr unsigned kManyClasses = kProductWarps;  // sums of an element

// Two blocks of 4 warps share a multiprocessor of Hopper's, which has 228 KiB, 1 of them for itself
// with each block.
constexpr unsigned kManyBytesWanted = 113 * 1024;
constexpr unsigned kManyStagesMax = 6;

// A block's shared memory: the norm's factors; then stages of activations, the sums of x, and each
// warp's stages of weights. At the end the warps' results lie in place of all but the factors.
template <Format kFormat, unsigned kGroups>
struct ManyShared {
  using I = ManyInputs<kFormat>;
  static constexpr bool kIsWide = false;
  static constexpr unsigned kTokens = kGroups * kGroupTokens;
  static constexpr unsigned kInputBytes = kTokens * I::kRowBytes;
  static constexpr unsigned kBeginBytes = kTokens * I::kSums * 2 * sizeof(float);
  static constexpr unsigned kInputs = kTokens * sizeof(float);
  static constexpr unsigned kFit =
      (kManyBytesWanted - kInputs - 2 * kBeginBytes) / (kInputBytes + 4 * Stage<kFormat>::kBytes);
  static constexpr unsigned kStages = kFit < 2 ? 2 : kFit > kManyStagesMax ? kManyStagesMax : kFit;
  static constexpr unsigned kBegins = kInputs + kStages * kInputBytes;
  static constexpr unsigned kWeights = kBegins + 2 * kBeginBytes;
  static constexpr unsigned kWarpBytes = kStages * Stage<kFormat>::kBytes;
  // A block's warps, where nothing speaks for fewer: if no two blocks fit, there is one of twice as
  // many.
  static constexpr unsigned kWarps = kWeights + 4 * kWarpBytes <= kManyBytesWanted ? 4 : 8;
  static constexpr unsigned kBlocks = kWarps;  // of 32 rows
  static constexpr unsigned kBlockWarps = 1;
  static constexpr unsigned kWarpSumBytes = kTokens * kSumsStride * sizeof(float);
  static_assert(kInputs % 16 == 0 && kInputBytes % 16 == 0 && kBeginBytes % 16 == 0);
  // Not every GPU has more.
  static_assert(kWeights + kWarpBytes <= 99 * 1024 && kInputs + kWarpSumBytes <= 99 * 1024);

  static constexpr size_t bytes(unsigned warps) {
    const size_t stages = kWeights + warps * kWarpBytes;
    const size_t sums = kInputs + warps * kWarpSumBytes;
    return stages > sums ? stages : sums;
  }
};

template <Format kFormat>
GPU_FUNCTION void begin_many_weights(const BlockWeights& weights, unsigned unit, std::byte* stage) {
  using S = Stage<kFormat>;
  BlockWeights own = weights;
  GPU_UNROLL
  for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
    own.quants[panel] += unit * S::kQuantBytes;
    own.high[panel] += unit * S::kHighBytes;
  }
  own.scales += unit * (kGpuPanelRows * S::kLayout.scale_bytes);
  own.factors += unit / kGpuFactorUnits * (kGpuPanelRows * S::kLayout.factor_bytes);
  begin_unit<kFormat>(own, stage);
}

// The window's activations.
struct ManySource {
  const std::byte* rows;  // where the lane reads the first token's, or the one that it has of 8
  size_t group_bytes;     // from a group's first token to the next one's
  unsigned tokens;
  unsigned columns;  // of a row, with the zeros behind them
};

GPU_FUNCTION ManySource many_source(const GpuProduct& product, size_t columns, size_t first,
                                    unsigned tokens) {
  const size_t row = first + lane_index() / 4;
  return {product.input + row * product.input_stride_bytes + lane_index() % 4 * 16,
          kGroupTokens * product.input_stride_bytes, tokens,
          static_cast<unsigned>(round_up<size_t>(columns, 32))};
}

// Asks for the unit's activations: the pieces that form_begins() takes of them. kWarps: likewise.
template <Format kFormat, unsigned kGroups, unsigned kWarps>
GPU_FUNCTION void begin_many_inputs(const ManySource& source, unsigned unit, std::byte* stage) {
  const unsigned first = unit * ManyInputs<kFormat>::kColumns;
  const unsigned turns = many_turns<kFormat, kGroups, kWarps>();
  const ManyPiece begin = many_piece<kFormat, kWarps>(0);
  const std::byte* const rows =
      source.rows + begin.group * source.group_bytes + (first + begin.column) * sizeof(uint16_t);
  GPU_UNROLL_BY((kWarps > 0 ? 16 : 1))
  for (unsigned turn = 0; turn < turns; ++turn) {
    const ManyPiece piece = many_piece<kFormat, kWarps>(turn);
    const unsigned row = piece.group * kGroupTokens + lane_index() / 4;
    if (row >= source.tokens || first + piece.column >= source.columns) continue;
    begin_copy_16(stage + many_piece_byte<kFormat>(piece),
                  rows + (piece.group - begin.group) * source.group_bytes +
                      static_cast<ptrdiff_t>(piece.column - begin.column) * 2);
  }
}

// The units that a block takes, in their order: those of one sum, or of all sums one after the
// other.
template <bool kIsSplit>
struct ManyWalk {
  unsigned unit;
  unsigned units;

  GPU_FUNCTION bool is_end() const { return unit >= units; }
  GPU_FUNCTION bool ends_sum() const { return unit + kManyClasses >= units; }
  GPU_FUNCTION void advance() {
    if (kIsSplit || !ends_sum()) {
      unit += kManyClasses;
    } else {
      const unsigned next = unit % kManyClasses + 1;
      unit = next < kManyClasses ? next : units;
    }
  }
};

template <unsigned kGroups, typename Work>
GPU_FUNCTION void for_each_sum(const Work& work) {
  GPU_UNROLL
  for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
    GPU_UNROLL
    for (unsigned group = 0; group < kGroups; ++group) {
      GPU_UNROLL
      for (unsigned index = 0; index < 4; ++index) work(panel, group, index);
    }
  }
}

// The owner of sum `index` of a group: its token of the window, and its row of the warp's 32.
GPU_FUNCTION unsigned many_token(unsigned group, unsigned index) {
  return group * kGroupTokens + lane_index() % 4 * 2 + index % 2;
}
GPU_FUNCTION unsigned many_row(unsigned panel, unsigned index) {
  return panel * kGpuPanelRows + lane_index() / 4 + index / 2 * 8;
}

// Adds sums that are ready to those before them.
template <unsigned kGroups>
GPU_FUNCTION void take_sums(ManySums<kGroups>& sums, ManySums<kGroups>& total) {
  for_each_sum<kGroups>([&](unsigned panel, unsigned group, unsigned index) {
    total[panel][group][index] += sums[panel][group][index];
    sums[panel][group][index] = 0;
  });
}

// The block's units, of which the first have been asked for. `sums`: of the last sum that was
// formed; `total`: of all sums together, unless each block forms one.
template <Format kFormat, unsigned kGroups, bool kIsSplit>
GPU_FUNCTION void add_many_units(const BlockWeights& weights, const ManySource& source,
                                 size_t columns, ManyWalk<kIsSplit> walk, ManyWalk<kIsSplit> asked,
                                 ManySums<kGroups>& sums, ManySums<kGroups>& total) {
  using M = ManyShared<kFormat, kGroups>;
  using I = ManyInputs<kFormat>;
  std::byte* const inputs = shared_memory() + M::kInputs;
  unsigned begin_byte = M::kBegins;
  const bool is_usual = thread_count() == M::kWarps * kWarpThreads;
  std::byte* const stages = shared_memory() + M::kWeights + warp_index() * M::kWarpBytes;
  const unsigned lane = lane_index();
  const unsigned lane_input =
      lane / 4 * I::kRowBytes + lane % 4 * (I::kLayout.scale_columns / 4 * 2);
  // A warp reads here only what it has copied itself, so it waits for no other.
  const auto form = [&](unsigned of) {
    wait_for_copies<M::kStages - 2>();
    meet_warp();
    if constexpr (I::kSums > 0) {
      const std::byte* const unit = inputs + of * M::kInputBytes;
      std::byte* const begins = shared_memory() + begin_byte;
      is_usual ? form_begins<kFormat, kGroups, M::kWarps>(unit, begins)
               : form_begins<kFormat, kGroups, 0>(unit, begins);
    }
  };
  if (!walk.is_end()) form(0);
  unsigned stage = 0;
  while (!walk.is_end()) {
    meet_block();  // what all have copied and formed is there, and the stage before has been read
    const unsigned free = stage == 0 ? M::kStages - 1 : stage - 1;
    if (!asked.is_end()) {
      begin_many_weights<kFormat>(weights, asked.unit, stages + free * Stage<kFormat>::kBytes);
      const auto begin = [&]<unsigned kWarps>() {
        begin_many_inputs<kFormat, kGroups, kWarps>(source, asked.unit,
                                                    inputs + free * M::kInputBytes);
      };
      is_usual ? begin.template operator()<M::kWarps>() : begin.template operator()<0>();
      asked.advance();
    }
    close_copies();
    const ManyPlace place = {inputs + stage * M::kInputBytes + lane_input,
                             shared_memory() + begin_byte + lane % 4 * sizeof(Words4)};
    add_many_unit<kFormat, kGroups>(place, stages + stage * Stage<kFormat>::kBytes,
                                    static_cast<unsigned>(columns) - walk.unit * I::kColumns, sums);
    if (!kIsSplit && walk.ends_sum()) {
      take_sums<kGroups>(sums, total);
    }
    walk.advance();
    stage = stage + 1 == M::kStages ? 0 : stage + 1;
    begin_byte = begin_byte == M::kBegins ? M::kBegins + M::kBeginBytes : M::kBegins;
    if (!walk.is_end()) form(stage);
  }
}

}  // namespace
}  // namespace lockstep
