// The matrix product with f32 activations: one chain of fma per output element, k ascending. A lane
// is a row; panels and tokens side by side only give chains that do not wait for one another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/matmul.inl.h"
#include "engine/kernels/cpu/matmul_float_strips.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// How far ahead memory is asked for, of two streams side by side, into the first cache. On two
// cores of a Granite Rapids, GB/s with one token and 1, 2, 3 and 4 KiB ahead: F16 31.5, 33.6, 32.4,
// 30.9; BF16 32.5, 33.6, 34.4, 32.5. Without any 30 and 32, and with 8 tokens, for which that is
// half, 15 to 17 instead of 28.
constexpr size_t kFloatStreamPrefetchBytes = 2048;

// The most tokens for which weights are widened as they are multiplied.
constexpr size_t kFewFloatTokens = 16;

// A part of a panel that is taken at a time, its 16 rows side by side:
//   kColumns     columns
//   kBytes       of one column
//   Weights      of the 16 rows; read(p), and where kColumns is 2 read_last(p) of a column without
//                a second
//   Inputs       a token's, in all lanes; inputs(row, k)
//   multiply(weights, inputs, sum)
template <typename Value, F32x16 (*kRead)(const Value*)>
struct FloatColumn {
  static constexpr size_t kColumns = 1;
  static constexpr size_t kBytes = kPanelRows * sizeof(Value);
  using Weights = F32x16;
  using Inputs = F32x16;
  static Weights read(const std::byte* p) { return kRead(reinterpret_cast<const Value*>(p)); }
  static Inputs inputs(const std::byte* row, size_t k) {
    return broadcast(read_float(row + k * sizeof(float)));
  }
  static F32x16 multiply(Weights weights, Inputs inputs, F32x16 sum) {
    return fma(weights, inputs, sum);
  }
};
using F32Column = FloatColumn<float, load>;
using F16Column = FloatColumn<uint16_t, load_half>;
using Bf16Column = FloatColumn<uint16_t, load_bf16>;

// How far ahead weights are asked for, and into which cache; 0: the processor's own prefetching is
// left to it.
struct FloatPrefetch {
  size_t bytes;
  int cache;
};

// kPanels panels, `apart` from one to the next, for kTokens tokens from `token` on. Where there are
// fewer, the last one is computed again and dropped.
template <typename Column, size_t kPanels, size_t kTokens, FloatPrefetch kPrefetch>
inline void multiply_columns(const MatmulArguments& arguments, size_t panel, size_t apart,
                             size_t token) {
  constexpr size_t kLineColumns = kLineBytes / Column::kBytes;
  const size_t columns = arguments.matrix.columns;
  const size_t panel_stride = columns * Column::kBytes;
  const size_t stream_stride = apart * panel_stride;
  const std::byte* weights = arguments.matrix.panels + panel * panel_stride;
  const size_t left = arguments.token_count - token;
  const size_t count = left < kTokens ? left : kTokens;
  const std::byte* inputs[kTokens];
  for (size_t t = 0; t < kTokens; ++t) {
    const size_t index = token + (t < count ? t : count - 1);
    inputs[t] = arguments.input + index * arguments.input_stride_bytes;
  }
  F32x16 sums[kPanels][kTokens];
  for (auto& panel_sums : sums) {
    for (F32x16& sum : panel_sums) sum = zero();
  }
  const auto multiply_at = [&] [[gnu::always_inline]] (size_t k, auto read) {
    typename Column::Inputs inputs_k[kTokens];
#pragma GCC unroll 8
    for (size_t t = 0; t < kTokens; ++t) inputs_k[t] = Column::inputs(inputs[t], k);
#pragma GCC unroll 8
    for (size_t p = 0; p < kPanels; ++p) {
      const typename Column::Weights column =
          read(weights + p * stream_stride + k * Column::kBytes);
#pragma GCC unroll 8
      for (size_t t = 0; t < kTokens; ++t) {
        sums[p][t] = Column::multiply(column, inputs_k[t], sums[p][t]);
      }
    }
  };
  size_t k = 0;
  for (; k + kLineColumns <= columns; k += kLineColumns) {
    if constexpr (kPrefetch.bytes > 0) {
      const std::byte* ahead = weights + k * Column::kBytes + kPrefetch.bytes;
#pragma GCC unroll 8
      for (size_t p = 0; p < kPanels; ++p) {
        __builtin_prefetch(ahead + p * stream_stride, 0, kPrefetch.cache);
      }
    }
#pragma GCC unroll 2
    for (size_t i = 0; i < kLineColumns; i += Column::kColumns) multiply_at(k + i, Column::read);
  }
  if constexpr (Column::kColumns == 2) {
    if (k < columns) multiply_at(k, Column::read_last);
  } else {
    for (; k < columns; ++k) multiply_at(k, Column::read);
  }
  for (size_t p = 0; p < kPanels; ++p) {
    for (size_t t = 0; t < count; ++t) {
      store_rows(arguments, panel + p * apart, token + t, sums[p][t]);
    }
  }
}

// Panels [panel, panel_end) for the tokens from `token` on, in tiles of kTokens and then fewer.
template <typename Column, size_t kTokens>
inline void multiply_tokens(const MatmulArguments& arguments, size_t panel, size_t panel_end,
                            size_t token) {
  if constexpr (kTokens > 0) {
    constexpr size_t kFitting = kFloatChains / kTokens;
    constexpr size_t kPanels = kFitting < kFloatPanels ? kFitting : kFloatPanels;
    constexpr FloatPrefetch kPrefetch = {kTokens > 1 ? kPrefetchBytes : 0, kSecondCache};
    for (; token + kTokens <= arguments.token_count; token += kTokens) {
      size_t p = panel;
      for (; p + kPanels <= panel_end; p += kPanels) {
        multiply_columns<Column, kPanels, kTokens, kPrefetch>(arguments, p, 1, token);
      }
      for (; p < panel_end; ++p) {
        multiply_columns<Column, 1, kTokens, kPrefetch>(arguments, p, 1, token);
      }
    }
    multiply_tokens<Column, kTokens / 2>(arguments, panel, panel_end, token);
  }
}

// All panels for all tokens, at most kTokens, as two streams.
template <typename Column, size_t kTokens>
inline void multiply_float_streams(const MatmulArguments& arguments) {
  if constexpr (kTokens > 1) {
    if (arguments.token_count <= kTokens / 2) {
      return multiply_float_streams<Column, kTokens / 2>(arguments);
    }
  }
  constexpr FloatPrefetch kPrefetch = {kFloatStreamPrefetchBytes, kFirstCache};
  constexpr size_t kPanels = 2 * kTokens <= kFloatChains ? 2 : 1;
  each_two_panels(
      arguments.panel_begin, arguments.panel_end,
      [&](size_t panel, size_t apart) {
        for (size_t p = 0; p < 2; p += kPanels) {
          multiply_columns<Column, kPanels, kTokens, kPrefetch>(arguments, panel + p * apart, apart,
                                                                0);
        }
      },
      [&](size_t panel) {
        multiply_columns<Column, 1, kTokens, kPrefetch>(arguments, panel, 1, 0);
      });
}

template <typename Column>
void matmul_floats(const MatmulArguments& arguments) {
  if (arguments.panel_streams == 2 && arguments.token_count <= kFloatTokens) {
    return multiply_float_streams<Column, kFloatTokens>(arguments);
  }
  if constexpr (Column::kColumns == 1) {
    if (arguments.token_count > kFewFloatTokens) return multiply_float_strips<Column>(arguments);
  }
  // Few panels at a time: their weights stay in a cache while the tokens pass by.
  for (size_t panel = arguments.panel_begin; panel < arguments.panel_end; panel += kFloatPanels) {
    const size_t left = arguments.panel_end - panel;
    const size_t end = panel + (left < kFloatPanels ? left : kFloatPanels);
    multiply_tokens<Column, kFloatTokens>(arguments, panel, end, 0);
  }
}

}  // namespace
}  // namespace lockstep
