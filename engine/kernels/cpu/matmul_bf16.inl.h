// The matrix product with activations of the form kBf16 by fused multiply-adds, once for all
// formats and instruction sets: what a matrix unit computes, bit for bit (see kernel_table.h). A
// lane is a row, a token has its own sums, blocks of 32 columns are taken in order: so neither the
// tiles nor the split between workers is seen in the bits.
//
// Weights are unpacked to f32 a strip of columns at a time and stay in a cache while the tokens
// pass by; so are the activations, for all panels of a group.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/bf16_weights.inl.h"
#include "engine/kernels/cpu/denormals.h"
#include "engine/kernels/cpu/matmul.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// A strip is 256 columns: a tile of the formats with the largest. A panel's is 16 KiB.
constexpr size_t kPairStripBlocks = 8;
constexpr size_t kPairStripColumns = kPairStripBlocks * kPairBlock;
// Panels whose strips lie side by side, so that widening the activations costs a fraction of the
// products; with few tokens only as many as are multiplied at once, which the nearest cache holds.
constexpr size_t kPairGroupPanels = 4;
constexpr size_t kFewTokens = 8;
// Tokens that a strip of weights serves before it is unpacked anew. All scratch is on the stack:
// 64 KiB of weights, 128 of activations, 32 of sums, in the second cache.
constexpr size_t kPairChunkTokens = 128;

struct PairScratch {
  F32x16 weights[kPairGroupPanels][kPairStripColumns];
  F32x16 sums[kPairGroupPanels][kPairChunkTokens];
  float inputs[kPairChunkTokens][kPairStripColumns];
};

// A strip as it lies in the scratch: `blocks` of 32 columns of weights, `parts` of them for each
// block of activations.
struct PairStrip {
  size_t blocks;
  size_t parts;
};

// sums += the strip's product, for kPanels panels from `panel` on and kTokens tokens from `token`.
template <size_t kPanels, size_t kTokens>
[[gnu::noinline]] void multiply_pairs(PairScratch& scratch, const PairStrip& strip, size_t panel,
                                      size_t token) {
  const F32x16* weights[kPanels];
  for (size_t p = 0; p < kPanels; ++p) weights[p] = scratch.weights[panel + p];
  for (size_t block = 0; block < strip.blocks; ++block) {
    const float* inputs = scratch.inputs[token] + block / strip.parts * kPairBlock;
    F32x16 chains[2][kPanels][kTokens];
#pragma GCC unroll 24
    for (size_t i = 0; i < 2 * kPanels * kTokens; ++i) {
      chains[i / (kPanels * kTokens)][i / kTokens % kPanels][i % kTokens] = zero();
    }
    for (size_t column = 0; column < kPairBlock; column += 2) {
#pragma GCC unroll 2
      for (size_t odd = 0; odd < 2; ++odd) {
        const size_t k = column + odd;
        F32x16 columns[kPanels];
#pragma GCC unroll 2
        for (size_t p = 0; p < kPanels; ++p) columns[p] = weights[p][block * kPairBlock + k];
#pragma GCC unroll 8
        for (size_t t = 0; t < kTokens; ++t) {
          const F32x16 input = broadcast(inputs[t * kPairStripColumns + k]);
#pragma GCC unroll 2
          for (size_t p = 0; p < kPanels; ++p) {
            chains[odd][p][t] = fma(columns[p], input, chains[odd][p][t]);
          }
        }
      }
    }
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) {
#pragma GCC unroll 8
      for (size_t t = 0; t < kTokens; ++t) {
        F32x16& sum = scratch.sums[panel + p][token + t];
        sum = add(sum, add(chains[0][p][t], chains[1][p][t]));
      }
    }
  }
}

// The same for `count` tokens from `token` on, in tiles of kTokens and one of fewer.
template <size_t kPanels, size_t kTokens>
inline void multiply_pairs_of(PairScratch& scratch, const PairStrip& strip, size_t panel,
                              size_t token, size_t count) {
  if constexpr (kTokens > 0) {
    for (; count >= kTokens; token += kTokens, count -= kTokens) {
      multiply_pairs<kPanels, kTokens>(scratch, strip, panel, token);
    }
    if (count > 0) multiply_pairs_of<kPanels, kTokens - 1>(scratch, strip, panel, token, count);
  }
}

// Columns [column, column + count) of the chunk's tokens, widened. What lies beyond a row's last
// column is zero.
inline void widen_inputs(const MatmulArguments& arguments, size_t token, size_t token_count,
                         size_t column, size_t count, PairScratch& scratch) {
  for (size_t t = 0; t < token_count; ++t) {
    const std::byte* row = arguments.input + (token + t) * arguments.input_stride_bytes;
    const auto* values = reinterpret_cast<const uint16_t*>(row) + column;
    for (size_t i = 0; i < count; i += kPanelRows) {
      store(scratch.inputs[t] + i, load_bf16(values + i));
    }
  }
}

// Panels [panel, panel_end), at most kPairGroupPanels, for `count` tokens from `token` on, at most
// kPairChunkTokens.
template <typename Weights>
inline void multiply_pair_group(const MatmulArguments& arguments, size_t panel, size_t panel_end,
                                size_t token, size_t count, PairScratch& scratch) {
  constexpr size_t kMostBlocks = kPairStripBlocks / Weights::kParts;
  const size_t group = panel_end - panel;
  const size_t blocks = (arguments.matrix.columns + kPairBlock - 1) / kPairBlock;
  for (size_t p = 0; p < group; ++p) {
    for (size_t t = 0; t < count; ++t) scratch.sums[p][t] = zero();
  }
  for (size_t begin = 0; begin < blocks; begin += kMostBlocks) {
    const size_t end = begin + kMostBlocks < blocks ? begin + kMostBlocks : blocks;
    for (size_t p = 0; p < group; ++p) {
      F32x16* columns = scratch.weights[p];
      Weights::unpack(
          arguments.matrix, panel + p, begin, end,
          [&] [[gnu::always_inline]] (size_t index, size_t pair, F32x16 first, F32x16 second) {
            columns[index * kPairBlock + 2 * pair] = round_bf16(first);
            columns[index * kPairBlock + 2 * pair + 1] = round_bf16(second);
          },
          [](size_t) {});
    }
    widen_inputs(arguments, token, count, begin * kPairBlock, (end - begin) * kPairBlock, scratch);
    const PairStrip strip = {(end - begin) * Weights::kParts, Weights::kParts};
    size_t p = 0;
    for (; p + kBf16Panels <= group; p += kBf16Panels) {
      multiply_pairs_of<kBf16Panels, kBf16Tokens>(scratch, strip, p, 0, count);
    }
    for (; p < group; ++p) multiply_pairs_of<1, kBf16Tokens>(scratch, strip, p, 0, count);
  }
  for (size_t p = 0; p < group; ++p) {
    for (size_t t = 0; t < count; ++t) {
      store_rows(arguments, panel + p, token + t, scratch.sums[p][t]);
    }
  }
}

template <typename Weights>
[[gnu::noinline]] void multiply_bf16(const MatmulArguments& arguments) {
  const size_t group = arguments.token_count <= kFewTokens ? kBf16Panels : kPairGroupPanels;
  PairScratch scratch;
  for (size_t token = 0; token < arguments.token_count; token += kPairChunkTokens) {
    const size_t left = arguments.token_count - token;
    const size_t count = left < kPairChunkTokens ? left : kPairChunkTokens;
    for (size_t panel = arguments.panel_begin; panel < arguments.panel_end; panel += group) {
      const size_t panels_left = arguments.panel_end - panel;
      const size_t end = panel + (panels_left < group ? panels_left : group);
      multiply_pair_group<Weights>(arguments, panel, end, token, count, scratch);
    }
  }
}

// Elements to bf16, nearest even; numbers below the normal ones are kept.
inline void to_bf16(const float* values, size_t count, std::byte* out) {
  auto* bits = reinterpret_cast<uint16_t*>(out);
  size_t i = 0;
  for (; i + kPanelRows <= count; i += kPanelRows) store_bf16(bits + i, load(values + i));
  if (i == count) return;
  uint16_t last[kPanelRows];
  store_bf16(last, load_first(values + i, count - i));
  for (size_t rest = 0; i + rest < count; ++rest) bits[i + rest] = last[rest];
}

template <typename Weights>
constexpr MatmulKernel kMatmulBf16 = without_denormals<multiply_bf16<Weights>>;

}  // namespace
}  // namespace lockstep
