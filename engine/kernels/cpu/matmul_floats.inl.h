// The matrix product with f32 activations: one chain of fma per output element, k ascending. A lane
// is a row; panels and tokens side by side only give chains that do not wait for one another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/matmul.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// One column of a panel: 16 rows' weights as float.
struct F32Column {
  static constexpr size_t kBytes = 64;
  static F32x16 read(const std::byte* p) { return load(reinterpret_cast<const float*>(p)); }
};
struct F16Column {
  static constexpr size_t kBytes = 32;
  static F32x16 read(const std::byte* p) { return load_half(reinterpret_cast<const uint16_t*>(p)); }
};
struct Bf16Column {
  static constexpr size_t kBytes = 32;
  static F32x16 read(const std::byte* p) { return load_bf16(reinterpret_cast<const uint16_t*>(p)); }
};

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
  for (size_t k = 0; k < columns; ++k) {
    F32x16 inputs_k[kTokens];
#pragma GCC unroll 8
    for (size_t t = 0; t < kTokens; ++t) {
      inputs_k[t] = broadcast(read_float(inputs[t] + k * sizeof(float)));
    }
#pragma GCC unroll 8
    for (size_t p = 0; p < kPanels; ++p) {
      const std::byte* place = weights + p * panel_stride + k * Column::kBytes;
      if constexpr (kTokens > 1) __builtin_prefetch(place + kPrefetchBytes, 0, kSecondCache);
      const F32x16 column = Column::read(place);
#pragma GCC unroll 8
      for (size_t t = 0; t < kTokens; ++t) sums[p][t] = fma(column, inputs_k[t], sums[p][t]);
    }
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
