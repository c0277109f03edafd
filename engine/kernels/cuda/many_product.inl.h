// The product of more than 8 tokens with weights (gpu_product.h). Included by many_product.cu, and
// by tests, after gpu_code.h.
//
// A block has 16, 32 or 64 tokens, and of weights 32 rows for each of its warps. All warps take the
// same unit of columns at the same time: its activations are copied into shared memory once for all
// of them. The 8 sums of an element follow one another: a warp forms the first, of units 0, 8, 16
// and so on, then the second, and adds each to the ones before it in registers.
//
// Matrices of few rows give too few blocks for a GPU's multiprocessors. Of such a block there are
// 8, each of which forms one of the sums and leaves it in memory; another kernel adds them and
// finishes. Neither that nor the number of warps changes any bit.
#pragma once

#include "engine/base/check.h"
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

// How a product is cut into blocks.
struct ManyCut {
  unsigned warps = 1;    // of a block
  unsigned blocks = 0;   // of 32 rows, or 16 of each of a gate's two
  unsigned windows = 1;  // of a block's tokens
  bool is_split = false;
  size_t tokens = 0;  // for which GpuProduct::partials has space, if it is split
};

GPU_FUNCTION float* many_partial(const GpuProduct& product, const ManyCut& cut, unsigned sum,
                                 size_t block, size_t token) {
  return product.partials + ((sum * size_t{cut.blocks} + block) * cut.tokens + token) * kBlockRows;
}

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
      for_each_sum<kGroups>([&](unsigned panel, unsigned group, unsigned index) {
        total[panel][group][index] += sums[panel][group][index];
        sums[panel][group][index] = 0;
      });
    }
    walk.advance();
    stage = stage + 1 == M::kStages ? 0 : stage + 1;
    begin_byte = begin_byte == M::kBegins ? M::kBegins + M::kBeginBytes : M::kBegins;
    if (!walk.is_end()) form(stage);
  }
}

// The norm's factors of the window's tokens, as norm_factor() forms each: a warp has several at a
// time, so that the memory's latency is waited for once for all of them.
GPU_FUNCTION void form_factors(const GpuNormFactor& norm, size_t first, unsigned tokens,
                               float* factors) {
  constexpr unsigned kAtOnce = 8;
  const size_t count = divide_up<size_t>(norm.columns, kBlockRows);
  const unsigned warps = thread_count() / kWarpThreads;
  GPU_KEEP_LOOP
  for (unsigned begin = warp_index() * kAtOnce; begin < tokens; begin += warps * kAtOnce) {
    float sums[kAtOnce] = {};
    if (norm.chunk_sums != nullptr) {
      const float* chunks[kAtOnce];
      GPU_UNROLL
      for (unsigned index = 0; index < kAtOnce; ++index) {
        const unsigned token = begin + index < tokens ? begin + index : tokens - 1;
        chunks[index] = norm.chunk_sums + (first + token) * norm.stride;
      }
      GPU_UNROLL_BY(4)
      for (size_t chunk = lane_index(); chunk < count; chunk += kWarpThreads) {
        GPU_UNROLL
        for (unsigned index = 0; index < kAtOnce; ++index) sums[index] += chunks[index][chunk];
      }
    }
    float own = 0;  // of the token that the lane writes
    GPU_UNROLL
    for (unsigned index = 0; index < kAtOnce; ++index) {
      const float sum = add_lanes(sums[index], kWarpThreads / 2);
      if (lane_index() == index) own = sum;
    }
    if (lane_index() < kAtOnce && begin + lane_index() < tokens) {
      factors[begin + lane_index()] = norm.chunk_sums == nullptr ? 1.0F : factor_of_sum(norm, own);
    }
  }
}

// Whether the gate's 16 rows are all there, nothing is to be filled up behind them, and what is
// written are whole words of bf16.
GPU_FUNCTION bool is_whole_gate(const GpuProduct& product, const BlockPlace& place) {
  const size_t rows = product.parts[0].matrix.rows;
  const bool is_last = place.row % kBlockRows == 0 && place.row + kGpuPanelRows >= rows;
  const GpuRows& gate = product.gate;
  const size_t place_bits = reinterpret_cast<uintptr_t>(gate.bf16) | gate.bf16_stride * 2;
  return product.finish == GpuFinish::kGate && gate.bf16 != nullptr && gate.f32 == nullptr &&
         place_bits % sizeof(Words4) == 0 && product.parts[0].output == nullptr &&
         product.parts[1].output == nullptr && place.row + kGpuPanelRows <= rows && !is_last;
}

// As finish_token() with a gate, where is_whole_gate(): a lane has the sums of both parts of its
// elements. `own`: of the warp.
template <unsigned kGroups>
GPU_FUNCTION void finish_many_gate(const GpuProduct& product, const BlockPlace& place,
                                   unsigned tokens, size_t first, const float* factors,
                                   std::byte* own, const ManySums<kGroups>& total) {
  constexpr unsigned kRowBytes = kGpuPanelRows * sizeof(uint16_t);
  GPU_UNROLL
  for (unsigned group = 0; group < kGroups; ++group) {
    GPU_UNROLL
    for (unsigned index = 0; index < 4; ++index) {
      const unsigned token = many_token(group, index);
      const unsigned row = many_row(0, index);
      float y[2];
      GPU_UNROLL
      for (unsigned part = 0; part < 2; ++part) {
        y[part] = finish_part(product, product.parts[part], total[part][group][index],
                              factors[token], token, place.row + row);
      }
      reinterpret_cast<uint16_t*>(own + token * kRowBytes)[row] =
          to_bf16(gated_by_silu(y[0], y[1]));
    }
  }
  meet_warp();
  GPU_UNROLL
  for (unsigned turn = 0; turn < kGroups * kGroupTokens * 2 / kWarpThreads; ++turn) {
    const unsigned piece = turn * kWarpThreads + lane_index();
    const unsigned token = piece / 2;
    if (token >= tokens) return;
    uint16_t* const row = product.gate.bf16 + (first + token) * product.gate.bf16_stride;
    store_16(row + place.row + piece % 2 * 8, load_16(own + piece * sizeof(Words4)));
  }
}

// A warp's 32 rows of all tokens, in shared memory of its own, token after token.
template <Format kFormat, unsigned kGroups>
GPU_FUNCTION void finish_many(const GpuProduct& product, const BlockPlace& place, unsigned tokens,
                              size_t first, const ManySums<kGroups>& total) {
  using M = ManyShared<kFormat, kGroups>;
  std::byte* const memory = shared_memory() + M::kInputs + warp_index() * M::kWarpSumBytes;
  const auto* const factors = reinterpret_cast<const float*>(shared_memory());
  if (is_whole_gate(product, place)) {
    return finish_many_gate<kGroups>(product, place, tokens, first, factors, memory, total);
  }
  auto* const own = reinterpret_cast<float*>(memory);
  for_each_sum<kGroups>([&](unsigned panel, unsigned group, unsigned index) {
    own[many_token(group, index) * kSumsStride + many_row(panel, index)] =
        total[panel][group][index];
  });
  meet_warp();
  if (product.finish == GpuFinish::kPlain) {
    const GpuPart& part = product.parts[place.part];
    const size_t row = place.row + lane_index();
    if (row >= part.matrix.rows) return;
    GPU_UNROLL_BY(4)
    for (unsigned token = 0; token < tokens; ++token) {
      finish_part(product, part, own[token * kSumsStride + lane_index()], factors[token],
                  first + token, row);
    }
    return;
  }
  GPU_KEEP_LOOP
  for (unsigned token = 0; token < tokens; ++token) {
    finish_token(product, place, own[token * kSumsStride + lane_index()], factors[token],
                 first + token);
  }
}

template <Format kFormat, unsigned kGroups, bool kIsSplit>
GPU_KERNEL_AT_ONCE((ManyShared<kFormat, kGroups>::kWarps * kWarpThreads),
                   (8 / ManyShared<kFormat, kGroups>::kWarps))
void multiply_many(GpuProduct product, size_t part_begin, size_t part_end, ManyCut cut) {
  using M = ManyShared<kFormat, kGroups>;
  const unsigned warps = thread_count() / kWarpThreads;
  const unsigned wanted = block_column() / cut.windows * warps + warp_index();
  const bool is_block = wanted < cut.blocks;  // else its warp helps the others alone
  const unsigned block = is_block ? wanted : cut.blocks - 1;
  const BlockPlace place = block_place(product, part_begin, part_end, block);
  const GpuMatrix& matrix = product.parts[place.part].matrix;
  const GpuPlanes planes = gpu_planes(gpu_layout(kFormat), matrix.rows, matrix.columns);
  const BlockWeights weights = place_panels<kFormat>(product, planes, place, /*unit=*/0);
  const ManyWalk<kIsSplit> walk = {kIsSplit ? block_row() : 0, static_cast<unsigned>(planes.units)};
  std::byte* const stages = shared_memory() + M::kWeights + warp_index() * M::kWarpBytes;
  ManyWalk<kIsSplit> asked = walk;
  for (unsigned stage = 0; stage + 1 < M::kStages && !asked.is_end(); ++stage) {
    begin_many_weights<kFormat>(weights, asked.unit, stages + stage * Stage<kFormat>::kBytes);
    asked.advance();
  }
  follow_launches();
  const size_t token_count = *product.token_count;
  const size_t first = size_t{block_column() % cut.windows} * M::kTokens;
  if (token_count <= product.token_begin + first) {
    // Not while copies go on: shared memory is another block's then.
    close_copies();
    return wait_for_copies<0>();
  }
  size_t left = token_count - product.token_begin;
  left = (left < product.token_limit ? left : product.token_limit) - first;
  const auto tokens = static_cast<unsigned>(left < M::kTokens ? left : M::kTokens);
  const ManySource source = many_source(product, matrix.columns, first, tokens);
  asked = walk;
  for (unsigned stage = 0; stage + 1 < M::kStages; ++stage) {
    if (!asked.is_end()) {
      begin_many_inputs<kFormat, kGroups, 0>(source, asked.unit,
                                             shared_memory() + M::kInputs + stage * M::kInputBytes);
      asked.advance();
    }
    close_copies();
  }
  if constexpr (!kIsSplit) {
    form_factors(product.norm, first, tokens, reinterpret_cast<float*>(shared_memory()));
  }
  ManySums<kGroups> sums;
  ManySums<kGroups> total;
  for_each_sum<kGroups>([&](unsigned panel, unsigned group, unsigned index) {
    sums[panel][group][index] = 0;
    total[panel][group][index] = -0.0F;  // with which the first sum is itself
  });
  add_many_units<kFormat, kGroups, kIsSplit>(weights, source, matrix.columns, walk, asked, sums,
                                             total);
  if constexpr (kIsSplit) {
    if (!is_block) return;
    float* const partial = many_partial(product, cut, block_row(), block, first);
    for_each_sum<kGroups>([&](unsigned panel, unsigned group, unsigned index) {
      partial[many_token(group, index) * kBlockRows + many_row(panel, index)] =
          sums[panel][group][index];
    });
  } else {
    if (planes.units < kManyClasses) {  // sums of no units
      for_each_sum<kGroups>([&](unsigned panel, unsigned group, unsigned index) {
        total[panel][group][index] += 0.0F;
      });
    }
    meet_block();  // all stages have been read
    if (is_block) finish_many<kFormat, kGroups>(product, place, tokens, first, total);
  }
}

constexpr unsigned kManyFinishWarps = 8;

// Adds what the blocks of a split product have left: a warp 32 rows of a token.
GPU_KERNEL_AT_ONCE(kManyFinishWarps* kWarpThreads, 6)
void add_many_partials(GpuProduct product, size_t part_begin, size_t part_end, ManyCut cut) {
  follow_launches();
  const size_t token = size_t{block_row()} * kManyFinishWarps + warp_index();
  const size_t block = block_column();
  // Before it is known whether there is such a token: the memory's latency is waited for once.
  float sums[kManyClasses];
  GPU_UNROLL
  for (unsigned sum = 0; sum < kManyClasses; ++sum) {
    sums[sum] = many_partial(product, cut, sum, block, token)[lane_index()];
  }
  const size_t token_count = *product.token_count;
  if (product.token_begin + token >= token_count || token >= product.token_limit) return;
  const float factor = norm_factor(product.norm, token);
  float y = sums[0];
  GPU_UNROLL
  for (unsigned sum = 1; sum < kManyClasses; ++sum) y += sums[sum];
  finish_token(product, block_place(product, part_begin, part_end, block), y, factor, token);
}

template <Format kFormat, unsigned kGroups>
ManyCut cut_many(const GpuProduct& product, size_t begin, size_t end) {
  using M = ManyShared<kFormat, kGroups>;
  ManyCut cut;
  cut.blocks = static_cast<unsigned>(product_blocks(product, begin, end));
  cut.windows = static_cast<unsigned>(divide_up<size_t>(product.token_limit, M::kTokens));
  cut.tokens = size_t{cut.windows} * M::kTokens;
  cut.warps = M::kWarps;
  while (cut.warps > 1 && M::bytes(cut.warps) > shared_bytes_most()) --cut.warps;
  const size_t blocks = size_t{divide_up(cut.blocks, cut.warps)} * cut.windows;
  const size_t partials = kManyClasses * cut.tokens * cut.blocks * kBlockRows;
  // A multiprocessor takes 8 warps, in two blocks or one. Fewer than three quarters: a guess.
  const bool few = blocks * cut.warps < size_t{6} * multiprocessor_count();
  cut.is_split = few && product.partials != nullptr && partials <= product.partial_floats;
  if (cut.is_split || !few) return cut;
  // Few warps of a block give more blocks.
  while (cut.warps > 1 && divide_up(cut.blocks, cut.warps) * cut.windows < multiprocessor_count()) {
    cut.warps /= 2;
  }
  return cut;
}

template <Format kFormat, unsigned kGroups>
void launch_many(void* stream, const GpuProduct& product, size_t begin, size_t end) {
  const ManyCut cut = cut_many<kFormat, kGroups>(product, begin, end);
  const Grid grid = {.columns = divide_up(cut.blocks, cut.warps) * cut.windows,
                     .rows = cut.is_split ? kManyClasses : 1,
                     .threads = cut.warps * kWarpThreads,
                     .shared_bytes = ManyShared<kFormat, kGroups>::bytes(cut.warps)};
  if (!cut.is_split) {
    return launch(stream, grid, multiply_many<kFormat, kGroups, false>, product, begin, end, cut);
  }
  launch(stream, grid, multiply_many<kFormat, kGroups, true>, product, begin, end, cut);
  const Grid finish = {
      .columns = cut.blocks,
      .rows = static_cast<unsigned>(divide_up<size_t>(product.token_limit, kManyFinishWarps)),
      .threads = kManyFinishWarps * kWarpThreads};
  launch(stream, finish, add_many_partials, product, begin, end, cut);
}

}  // namespace

void multiply_many_tokens(void* stream, const GpuProduct& window, size_t begin, size_t end) {
  with_format(window.parts[begin].matrix.format, [&]<Format kFormat>() {
    if constexpr (kFormat != Format::kF32) {
      if (window.token_limit <= 16) return launch_many<kFormat, 2>(stream, window, begin, end);
      if (window.token_limit <= 32) return launch_many<kFormat, 4>(stream, window, begin, end);
      launch_many<kFormat, 8>(stream, window, begin, end);
    }
  });
}

}  // namespace lockstep
