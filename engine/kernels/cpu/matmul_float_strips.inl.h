// The matrix product with f32 activations for many tokens. Weights are widened to f32 once for all
// of them, a strip of columns at a time, and stay in a cache while the tokens pass by; so do the
// activations, for all panels of a group. Order of operations as in matmul_floats.inl.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/matmul.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// A panel's strip is 16 KiB, which the nearest cache holds beside the activations of a tile.
constexpr size_t kFloatStripColumns = 256;
constexpr size_t kFloatGroupPanels = 4;

// On the stack, in the second cache: 64 KiB of weights, 32 of sums.
struct FloatScratch {
  F32x16 weights[kFloatGroupPanels][kFloatStripColumns];
  F32x16 sums[kFloatGroupPanels][kChunkTokens];
};

// The columns of a strip for a chunk of tokens: where those of the first lie, and their number.
struct FloatInputs {
  const std::byte* first;
  size_t stride_bytes;
  size_t columns;
};

// sums += the strip's product, for kPanels panels from `panel` on and kTokens tokens from `token`.
template <size_t kPanels, size_t kTokens>
[[gnu::noinline]] void multiply_float_tile(FloatScratch& scratch, const FloatInputs& inputs,
                                           size_t panel, size_t token) {
  const std::byte* rows[kTokens];
#pragma GCC unroll 16
  for (size_t t = 0; t < kTokens; ++t) rows[t] = inputs.first + (token + t) * inputs.stride_bytes;
  F32x16 sums[kPanels][kTokens];
#pragma GCC unroll 32
  for (size_t i = 0; i < kPanels * kTokens; ++i) {
    sums[i / kTokens][i % kTokens] = scratch.sums[panel + i / kTokens][token + i % kTokens];
  }
  const F32x16* weights = scratch.weights[panel];
#pragma GCC unroll 2
  for (size_t k = 0; k < inputs.columns; ++k) {
    F32x16 column[kPanels];
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) column[p] = weights[p * kFloatStripColumns + k];
#pragma GCC unroll 16
    for (size_t t = 0; t < kTokens; ++t) {
      const F32x16 input = broadcast(read_float(rows[t] + k * sizeof(float)));
#pragma GCC unroll 2
      for (size_t p = 0; p < kPanels; ++p) sums[p][t] = fma(column[p], input, sums[p][t]);
    }
  }
#pragma GCC unroll 32
  for (size_t i = 0; i < kPanels * kTokens; ++i) {
    scratch.sums[panel + i / kTokens][token + i % kTokens] = sums[i / kTokens][i % kTokens];
  }
}

// The same for `count` tokens, at most kTokens.
template <size_t kPanels, size_t kTokens>
inline void multiply_float_tile_of(FloatScratch& scratch, const FloatInputs& inputs, size_t panel,
                                   size_t token, size_t count) {
  if constexpr (kTokens > 1) {
    if (count < kTokens) {
      return multiply_float_tile_of<kPanels, kTokens - 1>(scratch, inputs, panel, token, count);
    }
  }
  multiply_float_tile<kPanels, kTokens>(scratch, inputs, panel, token);
}

// Weights that are widened next, `bytes` of each panel: asked for while others are multiplied.
struct NextWeights {
  const std::byte* first;
  size_t panel_stride;
  size_t bytes;
};

// The same for the first `count` tokens, in tiles of as even a size as can be: one of few tokens
// would wait for its multiply-adds.
template <size_t kPanels>
inline void multiply_float_tiles(FloatScratch& scratch, const FloatInputs& inputs, size_t panel,
                                 size_t count, const NextWeights& next) {
  size_t token = 0;
  size_t asked = 0;
  for (size_t tiles = (count + kFloatTileTokens - 1) / kFloatTileTokens; tiles > 0; --tiles) {
    const size_t share = (next.bytes - asked) / tiles;
    for (const size_t end = asked + share; asked < end; asked += kLineBytes) {
#pragma GCC unroll 2
      for (size_t p = 0; p < kPanels; ++p) {
        __builtin_prefetch(next.first + p * next.panel_stride + asked, 0, kSecondCache);
      }
    }
    const size_t size = (count - token + tiles - 1) / tiles;
    multiply_float_tile_of<kPanels, kFloatTileTokens>(scratch, inputs, panel, token, size);
    token += size;
  }
}

// Panels [panel, panel_end), at most kFloatGroupPanels, for `count` tokens from `token` on, at most
// kChunkTokens.
template <typename Column>
inline void multiply_float_group(const MatmulArguments& arguments, size_t panel, size_t panel_end,
                                 size_t token, size_t count, FloatScratch& scratch) {
  const size_t columns = arguments.matrix.columns;
  const size_t panel_stride = columns * Column::kBytes;
  const size_t group = panel_end - panel;
  for (size_t p = 0; p < group; ++p) {
    for (size_t t = 0; t < count; ++t) scratch.sums[p][t] = zero();
  }
  for (size_t begin = 0; begin < columns; begin += kFloatStripColumns) {
    const size_t left = columns - begin;
    const FloatInputs inputs = {
        arguments.input + token * arguments.input_stride_bytes + begin * sizeof(float),
        arguments.input_stride_bytes, left < kFloatStripColumns ? left : kFloatStripColumns};
    const std::byte* packed =
        arguments.matrix.panels + panel * panel_stride + begin * Column::kBytes;
    for (size_t p = 0; p < group; ++p) {
      for (size_t k = 0; k < inputs.columns; ++k) {
        scratch.weights[p][k] = Column::read(packed + p * panel_stride + k * Column::kBytes);
      }
    }
    const auto next = [&](size_t p) -> NextWeights {
      constexpr size_t kBytes = kFloatStripColumns * Column::kBytes;
      return {packed + p * panel_stride + kBytes, panel_stride, kBytes};
    };
    size_t p = 0;
    for (; p + kFloatTilePanels <= group; p += kFloatTilePanels) {
      multiply_float_tiles<kFloatTilePanels>(scratch, inputs, p, count, next(p));
    }
    for (; p < group; ++p) multiply_float_tiles<1>(scratch, inputs, p, count, next(p));
  }
  for (size_t p = 0; p < group; ++p) {
    for (size_t t = 0; t < count; ++t) {
      store_rows(arguments, panel + p, token + t, scratch.sums[p][t]);
    }
  }
}

template <typename Column>
inline void multiply_float_strips(const MatmulArguments& arguments) {
  FloatScratch scratch;
  for (size_t panel = arguments.panel_begin; panel < arguments.panel_end;
       panel += kFloatGroupPanels) {
    const size_t panels_left = arguments.panel_end - panel;
    const size_t end = panel + (panels_left < kFloatGroupPanels ? panels_left : kFloatGroupPanels);
    for (size_t token = 0; token < arguments.token_count; token += kChunkTokens) {
      const size_t left = arguments.token_count - token;
      const size_t count = left < kChunkTokens ? left : kChunkTokens;
      multiply_float_group<Column>(arguments, panel, end, token, count, scratch);
    }
  }
}

}  // namespace
}  // namespace lockstep
