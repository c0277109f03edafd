// The matrix product with f32 activations: one chain of fma per output element, k ascending. A lane
// is a row; panels and tokens side by side only give chains that do not wait for one another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/matmul.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// What is taken of a panel at a time, its 16 rows side by side:
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

template <typename Column, size_t kPanels, size_t kTokens>
inline void multiply_columns(const MatmulArguments& arguments, size_t panel, size_t token) {
  const size_t columns = arguments.matrix.columns;
  const size_t panel_stride = columns * Column::kBytes;
  const std::byte* weights = arguments.matrix.panels + panel * panel_stride;
  const std::byte* inputs[kTokens];
  for (size_t t = 0; t < kTokens; ++t) {
    inputs[t] = arguments.input + (token + t) * arguments.input_stride_bytes;
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
      const std::byte* place = weights + p * panel_stride + k * Column::kBytes;
      if constexpr (kTokens > 1) __builtin_prefetch(place + kPrefetchBytes, 0, kSecondCache);
      const typename Column::Weights column = read(place);
#pragma GCC unroll 8
      for (size_t t = 0; t < kTokens; ++t) {
        sums[p][t] = Column::multiply(column, inputs_k[t], sums[p][t]);
      }
    }
  };
  const size_t whole = columns / Column::kColumns * Column::kColumns;
  for (size_t k = 0; k < whole; k += Column::kColumns) multiply_at(k, Column::read);
  if constexpr (Column::kColumns == 2) {
    if (whole < columns) multiply_at(whole, Column::read_last);
  }
  for (size_t p = 0; p < kPanels; ++p) {
    for (size_t t = 0; t < kTokens; ++t) {
      store_rows(arguments, panel + p, token + t, sums[p][t]);
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
    for (; token + kTokens <= arguments.token_count; token += kTokens) {
      size_t p = panel;
      for (; p + kPanels <= panel_end; p += kPanels) {
        multiply_columns<Column, kPanels, kTokens>(arguments, p, token);
      }
      for (; p < panel_end; ++p) multiply_columns<Column, 1, kTokens>(arguments, p, token);
    }
    multiply_tokens<Column, kTokens / 2>(arguments, panel, panel_end, token);
  }
}

template <typename Column>
void matmul_floats(const MatmulArguments& arguments) {
  // Few panels at a time: their weights stay in a cache while the tokens pass by.
  for (size_t panel = arguments.panel_begin; panel < arguments.panel_end; panel += kFloatPanels) {
    const size_t left = arguments.panel_end - panel;
    const size_t end = panel + (left < kFloatPanels ? left : kFloatPanels);
    multiply_tokens<Column, kFloatTokens>(arguments, panel, end, 0);
  }
}

}  // namespace
}  // namespace lockstep
