// Products of prompted tokens on a GPU: a panel of weights is unpacked into plain rows of bf16, a
// library for matrices (gpu_matrix_library.h) multiplies it with all of a pass's prompted tokens,
// and what follows the product is done as gpu_product() does it.
//
// The weights are rounded to bf16 (nearest even) from their exact values, as the CPUs' bf16 form
// rounds them; so a product differs from the exact one by at most
//   (2^-9 + columns * 2^-23) * the sum of |w * x|
// where the library adds in f32, in whatever order. F32 weights are never unpacked: gpu_product()
// multiplies them.
//
// Order of operations, per element: y = the library's sum, whose order is the one of the kernel
// that it has for the panel's shape; then as in gpu_product.h, from the norm's factor on. Where
// nothing comes between the sum and what `output` held, the library adds that (an addition in f32,
// rounded once, as ours is).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kernels/gpu_product.h"

namespace lockstep {

// Rows of a panel are handed out by so many.
inline constexpr size_t kGpuPanelStep = 32;

// How large a panel may be. Sums of small ones would stay in the second cache, but more of them
// leave more launches, and multiprocessors without a tile of the product at the end of each: on an
// H200, of an 8B model in Q4_0, a prompt of 2,048 tokens is computed at 24.0 k tokens/s with 2,048
// rows and 27.6 k with 8,192; and, with less to do behind each, 34.3 k with 8,192, 36.5 k with
// 14,336 and 36.8 k with all rows of a product, which take twice the memory.
struct GpuPanelLimits {
  size_t rows = 16'384;
  size_t bytes = size_t{128} << 20U;

  friend bool operator==(const GpuPanelLimits&, const GpuPanelLimits&) = default;
};

// Rows of a product's parts that are unpacked together, one part's after the other's. Of each
// `row_count` from `row_begin` on, both multiples of kGpuPanelStep: beyond a part's last row zeros
// follow.
struct GpuPanel {
  size_t row_begin[kGpuProductParts] = {};
  size_t row_count[kGpuProductParts] = {};

  constexpr size_t rows() const {
    size_t sum = 0;
    for (const size_t count : row_count) sum += count;
    return sum;
  }
};

// Columns of an unpacked row, with zeros behind the weight's own.
constexpr size_t gpu_panel_columns(size_t columns) {
  return (columns + kGpuPanelStep - 1) / kGpuPanelStep * kGpuPanelStep;
}

// The most rows of a panel of so many columns; at least twice kGpuPanelStep.
size_t gpu_panel_rows_max(size_t columns, const GpuPanelLimits& limits);

// The panels of a product whose parts have `part_rows` rows, about as large as one another. With a
// gate each has the same rows of both parts.
std::vector<GpuPanel> gpu_panels(std::span<const size_t> part_rows, size_t columns, bool gate,
                                 const GpuPanelLimits& limits);

// rows[r][c] = the value of the matrix's row row_begin + r in column c, rounded to bf16; zeros up
// to gpu_panel_columns() and in rows that the matrix does not have. Not of F32.
struct GpuUnpacking {
  GpuMatrix matrix;
  size_t row_begin = 0;      // a multiple of 16
  size_t row_count = 0;      // likewise
  uint16_t* rows = nullptr;  // 16-byte aligned; gpu_panel_columns() from row to row
};
void gpu_unpack_rows(void* stream, const GpuUnpacking& unpacking);

// Whether the library's products can be written to the only part's output at once, or added to it:
// of what follows a product there are norms at most.
constexpr bool gpu_goes_to_output(const GpuProduct& product) {
  const GpuPart& part = product.parts[0];
  return product.part_count == 1 && product.finish != GpuFinish::kGate &&
         product.norm.chunk_sums == nullptr && part.scale == 1 && part.bias == nullptr &&
         part.output != nullptr && part.matrix.rows % kGpuPanelStep == 0;
}

// The steps after a product, on the sums of a panel. Every array is aligned to four of its
// elements, as its stride is.
struct GpuPanelSums {
  // As for gpu_product(), but for its input, and that token_limit may be any number.
  GpuProduct product;
  GpuPanel panel;
  // [token, from token_begin on][row of the panel]; none: the output has y, and norms alone follow.
  const float* sums = nullptr;
  unsigned grid_rows = 1;  // blocks that share the tokens, kGpuFinishTokens at a time
};
inline constexpr size_t kGpuFinishTokens = 8;
void gpu_finish_panel(void* stream, const GpuPanelSums& sums);

}  // namespace lockstep
