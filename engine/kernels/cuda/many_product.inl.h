// The product of more than 8 tokens with weights (gpu_product.h). Included by many_product.cu, and
// by tests, after gpu_code.h.
//
// A block has 16, 32 or 64 tokens, and of weights 32 rows for each of its warps. All warps take the
// same unit of columns at the same time: its activations are copied into shared memory once for all
// of them. The 8 sums of an element follow one another: a warp forms the first, of units 0, 8, 16
// and so on, then the second, and adds each to the ones before it in registers. Of two ways to form
// them (many_sums.inl.h, wide_sums.inl.h) a GPU has one.
//
// Matrices of few rows give too few blocks for a GPU's multiprocessors. Of such a block there are
// 8, each of which forms one of the sums and leaves it in memory; another kernel adds them and
// finishes. Neither that nor the number of warps changes any bit.
#pragma once

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/kernel_words.inl.h"
#include "engine/kernels/cuda/many_sums.inl.h"
#include "engine/kernels/cuda/product_place.inl.h"
#include "engine/kernels/cuda/wide_sums.inl.h"

namespace lockstep {
namespace {

// How a product is cut into blocks.
struct ManyCut {
  unsigned blocks = 0;   // of 32 rows, or 16 of each of a gate's two
  unsigned each = 1;     // how many of them a block of threads has
  unsigned windows = 1;  // of a block's tokens
  bool is_split = false;
  size_t tokens = 0;  // for which GpuProduct::partials has space, if it is split
};

GPU_FUNCTION float* many_partial(const GpuProduct& product, const ManyCut& cut, unsigned sum,
                                 size_t block, size_t token) {
  return product.partials + ((sum * size_t{cut.blocks} + block) * cut.tokens + token) * kBlockRows;
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

// Finishes 32 rows of the tokens begin, begin + step ..., whose sums lie in shared memory, token
// after token.
GPU_FUNCTION void finish_rows(const GpuProduct& product, const BlockPlace& place, const float* sums,
                              unsigned begin, unsigned step, unsigned tokens, size_t first) {
  const auto* const factors = reinterpret_cast<const float*>(shared_memory());
  sums += lane_index();
  if (product.finish == GpuFinish::kPlain) {
    const GpuPart& part = product.parts[place.part];
    const size_t row = place.row + lane_index();
    if (row >= part.matrix.rows) return;
    GPU_UNROLL_BY(4)
    for (unsigned token = begin; token < tokens; token += step) {
      finish_part(product, part, sums[token * kSumsStride], factors[token], first + token, row);
    }
    return;
  }
  GPU_KEEP_LOOP
  for (unsigned token = begin; token < tokens; token += step) {
    finish_token(product, place, sums[token * kSumsStride], factors[token], first + token);
  }
}

// A warp's 32 rows of all tokens, in shared memory of its own.
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
  finish_rows(product, place, own, 0, 1, tokens, first);
}

// The 32 rows of a pair of warps, whose sums lie in shared memory: either has every other token.
GPU_FUNCTION void finish_wide(const GpuProduct& product, const BlockPlace& place, unsigned tokens,
                              size_t first, const float* sums) {
  const unsigned own = warp_index() % 2;
  if (!is_whole_gate(product, place)) {
    return finish_rows(product, place, sums, own, 2, tokens, first);
  }
  // A lane has 8 rows of a token.
  const auto* const factors = reinterpret_cast<const float*>(shared_memory());
  GPU_KEEP_LOOP
  for (unsigned piece = own * kWarpThreads + lane_index(); piece < tokens * 2;
       piece += 2 * kWarpThreads) {
    const unsigned token = piece / 2;
    const unsigned row = piece % 2 * 8;
    const float* const of_token = sums + token * kSumsStride + row;
    uint32_t halves[8];
    GPU_UNROLL
    for (unsigned index = 0; index < 8; ++index) {
      float y[2];
      GPU_UNROLL
      for (unsigned part = 0; part < 2; ++part) {
        y[part] = finish_part(product, product.parts[part], of_token[part * kGpuPanelRows + index],
                              factors[token], first + token, place.row + row + index);
      }
      halves[index] = to_bf16(gated_by_silu(y[0], y[1]));
    }
    Words4 words;
    GPU_UNROLL
    for (unsigned word = 0; word < 4; ++word) {
      words.words[word] = halves[word * 2] | halves[word * 2 + 1] << 16U;
    }
    store_16(product.gate.bf16 + (first + token) * product.gate.bf16_stride + place.row + row,
             words);
  }
}

// The tokens of the window that begins at `first`.
GPU_FUNCTION unsigned window_tokens(const GpuProduct& product, size_t token_count, size_t first,
                                    unsigned most) {
  size_t left = token_count - product.token_begin;
  left = (left < product.token_limit ? left : product.token_limit) - first;
  return left < most ? static_cast<unsigned>(left) : most;
}

// Formats whose scales take some work to unpack are slower by products of warp groups: 64 tokens of
// Q4_K_M 6,832 tokens/s on an H200 instead of 7,437.
template <Format kFormat>
constexpr bool kGoesByGroups = !Stage<kFormat>::kUnpacks;

template <Format kFormat, unsigned kGroups, bool kIsSplit>
GPU_KERNEL_AT_ONCE((ManyShared<kFormat, kGroups>::kWarps * kWarpThreads),
                   (8 / ManyShared<kFormat, kGroups>::kWarps))
void multiply_many(GpuProduct product, size_t part_begin, size_t part_end, ManyCut cut) {
  if constexpr (kGroups == 8 && kGoesByGroups<kFormat> && !kMayLackGroupProducts) {
    return wait_for_launches();  // it is not launched
  }
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
  const size_t token_count = load_of_batch(product.token_count);
  follow_launches();
  const size_t first = size_t{block_column() % cut.windows} * M::kTokens;
  if (token_count <= product.token_begin + first) {
    // Not while copies go on: shared memory is another block's then.
    close_copies();
    return wait_for_copies<0>();
  }
  const unsigned tokens = window_tokens(product, token_count, first, M::kTokens);
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

// The same by products of warp groups.
template <Format kFormat, unsigned kGroups, bool kIsSplit>
GPU_KERNEL_OF((WideShared<kFormat, kGroups>::kWarps * kWarpThreads))
void multiply_wide(GpuProduct product, size_t part_begin, size_t part_end, ManyCut cut) {
  if constexpr (!kHasGroupProducts) return wait_for_launches();  // it is not launched
  using M = WideShared<kFormat, kGroups>;
  const unsigned pair = warp_index() / 2;
  const unsigned wanted = block_column() / cut.windows * M::kBlocks + pair;
  const bool is_block = wanted < cut.blocks;  // else its warps help the others alone
  const unsigned block = is_block ? wanted : cut.blocks - 1;
  const BlockPlace place = block_place(product, part_begin, part_end, block);
  const GpuMatrix& matrix = product.parts[place.part].matrix;
  const GpuPlanes planes = gpu_planes(gpu_layout(kFormat), matrix.rows, matrix.columns);
  const WideWeights weights =
      wide_weights(place_panels<kFormat>(product, planes, place, /*unit=*/0));
  const ManyWalk<kIsSplit> walk = {kIsSplit ? block_row() : 0, static_cast<unsigned>(planes.units)};
  std::byte* const stages = shared_memory() + M::kWeights + pair * M::kStageBytes;
  ManyWalk<kIsSplit> asked = walk;
  for (unsigned stage = 0; stage + 1 < M::kStages; ++stage) {
    if (!asked.is_end()) {
      begin_wide_weights<kFormat>(weights, asked.unit, stages + stage * Stage<kFormat>::kBytes);
      asked.advance();
    }
    close_copies();
  }
  const size_t token_count = load_of_batch(product.token_count);
  follow_launches();
  const size_t first = size_t{block_column() % cut.windows} * M::kTokens;
  // Not while copies go on: shared memory is another block's then.
  if (token_count <= product.token_begin + first) return wait_for_copies<0>();
  const unsigned tokens = window_tokens(product, token_count, first, M::kTokens);
  WidePieces<kFormat, kGroups> pieces;
  find_wide_pieces<kFormat, kGroups>(product, matrix.columns, first, tokens, pieces);
  auto* const total = reinterpret_cast<float*>(shared_memory() + M::kWeights +
                                               M::kBlocks * M::kStageBytes + pair * M::kSumBytes);
  PanelSums<kGroups> sums = {};
  const auto begin = [&] {
    if constexpr (!kIsSplit) {
      form_factors(product.norm, first, tokens, reinterpret_cast<float*>(shared_memory()));
      for_each_total<kGroups>(total, weights.panel, [](float& value, unsigned, unsigned) {
        value = -0.0F;  // with which the first sum is itself
      });
    }
  };
  add_wide_units<kFormat, kGroups, kIsSplit>(weights, pieces, matrix.columns, walk, asked, sums,
                                             total, begin);
  if constexpr (kIsSplit) {
    if (!is_block) return;
    float* const partial = many_partial(product, cut, block_row(), block, first);
    GPU_UNROLL
    for (unsigned index = 0; index < kGroups * 4; ++index) {
      partial[many_token(index / 4, index % 4) * kBlockRows + many_row(weights.panel, index % 4)] =
          sums[index / 4][index % 4];
    }
  } else {
    if (planes.units < kManyClasses) {  // sums of no units
      for_each_total<kGroups>(total, weights.panel,
                              [](float& value, unsigned, unsigned) { value += 0.0F; });
    }
    meet_block();
    if (is_block) finish_wide(product, place, tokens, first, total);
  }
}

constexpr unsigned kManyFinishWarps = 8;

// Adds what the blocks of a split product have left: a warp 32 rows of a token.
GPU_KERNEL_AT_ONCE(kManyFinishWarps* kWarpThreads, 6)
void add_many_partials(GpuProduct product, size_t part_begin, size_t part_end, ManyCut cut) {
  const size_t token_count = load_of_batch(product.token_count);
  follow_launches();
  const size_t token = size_t{block_row()} * kManyFinishWarps + warp_index();
  const size_t block = block_column();
  if (product.token_begin + token >= token_count || token >= product.token_limit) return;
  // All at once: the memory's latency is waited for once.
  const BlockPlace place = block_place(product, part_begin, part_end, block);
  const LaneRow own = read_lane_row(product, place, token);
  float sums[kManyClasses];
  GPU_UNROLL
  for (unsigned sum = 0; sum < kManyClasses; ++sum) {
    sums[sum] = many_partial(product, cut, sum, block, token)[lane_index()];
  }
  const float factor = norm_factor(product.norm, token);
  float y = sums[0];
  GPU_UNROLL
  for (unsigned sum = 1; sum < kManyClasses; ++sum) y += sums[sum];
  finish_token(product, place, own, y, factor, token);
}

template <typename M>
ManyCut cut_many(const GpuProduct& product, size_t begin, size_t end) {
  ManyCut cut;
  cut.blocks = static_cast<unsigned>(product_blocks(product, begin, end));
  cut.windows = static_cast<unsigned>(divide_up<size_t>(product.token_limit, M::kTokens));
  cut.tokens = size_t{cut.windows} * M::kTokens;
  cut.each = M::kBlocks;
  while (!M::kIsWide && cut.each > 1 && M::bytes(cut.each) > shared_bytes_most()) --cut.each;
  const size_t blocks = size_t{divide_up(cut.blocks, cut.each)} * cut.windows;
  const size_t partials = kManyClasses * cut.tokens * cut.blocks * kBlockRows;
  // A multiprocessor takes 8 times 32 rows. Fewer than three quarters: a guess.
  const bool few = blocks * cut.each < size_t{6} * multiprocessor_count();
  cut.is_split = few && product.partials != nullptr && partials <= product.partial_floats;
  if (cut.is_split || !few || M::kIsWide) return cut;
  // Few rows of a block give more blocks.
  while (cut.each > 1 && divide_up(cut.blocks, cut.each) * cut.windows < multiprocessor_count()) {
    cut.each /= 2;
  }
  return cut;
}

template <Format kFormat, unsigned kGroups, bool kIsWide>
void launch_many(void* stream, const GpuProduct& product, size_t begin, size_t end) {
  using M = std::conditional_t<kIsWide, WideShared<kFormat, kGroups>, ManyShared<kFormat, kGroups>>;
  const ManyCut cut = cut_many<M>(product, begin, end);
  const Grid grid = {.columns = divide_up(cut.blocks, cut.each) * cut.windows,
                     .rows = cut.is_split ? kManyClasses : 1,
                     .threads = cut.each * M::kBlockWarps * kWarpThreads,
                     .shared_bytes = M::bytes(cut.each)};
  const auto multiply = [&]<bool kIsSplit>() {
    if constexpr (kIsWide) {
      launch(stream, grid, multiply_wide<kFormat, kGroups, kIsSplit>, product, begin, end, cut);
    } else {
      launch(stream, grid, multiply_many<kFormat, kGroups, kIsSplit>, product, begin, end, cut);
    }
  };
  if (!cut.is_split) return multiply.template operator()<false>();
  multiply.template operator()<true>();
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
      if (window.token_limit <= 16) {
        return launch_many<kFormat, 2, false>(stream, window, begin, end);
      }
      // With so few, products of warp groups have too little to do for each weight.
      if (window.token_limit <= 32) {
        return launch_many<kFormat, 4, false>(stream, window, begin, end);
      }
      if constexpr (kGoesByGroups<kFormat>) {
        if (has_group_products()) return launch_many<kFormat, 8, true>(stream, window, begin, end);
      }
      launch_many<kFormat, 8, false>(stream, window, begin, end);
    }
  });
}

}  // namespace lockstep
