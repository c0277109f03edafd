// The product of a few tokens' activations with weights, on a GPU: 1 to 256 tokens, which is what a
// pass of generated tokens has, or a part of a prompt with F32 weights (with others: gpu_panel.h).
// What follows a product in a layer is a part of it: the norm's factor, bias, residual, the next
// norms' products, the gate. A token's results never depend on which tokens are beside it, nor on
// how many.
//
// Order of operations, per element. Columns are taken in units: 128; of F32, F16 and BF16 64, of
// Q4_K and Q5_K 256. Of 8 sums, sum w takes the units w, w + 8, w + 16 ... in this
// order, each from its first column to its last:
//   quantized    per 32 columns (Q6_K: 16) the sum of quant * x by tile products; then acc =
//                fma(sum, scale, acc), with scale as the file gives it (d * sc rounded once).
//                Of Q8_0 it begins at 0. Of others it is of (quant + 128) * x, quants counted
//                from 0, and begins at the sum of -bias * x by tile products, bias = 128 + what
//                the format takes from its quants; with minimums it begins at 0, and then acc =
//                fma(the sum of the x, fma(-128, scale, minimum), acc)
//   BF16         acc by tile products
//   F16          likewise with the weight's bf16 and then, per 32 columns, with what is left of it
//                in bf16
//   F32          acc = fma(w, x, acc), by ascending column
// A tile product adds 16 terms to a float in the order and with the rounding of the device, the
// same for the same device. Then y = the 8 sums, added from the first to the last;
//   y = y * the norm's factor;  * scale;  + bias;  + what `output` held (accumulate).
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/gpu_matrix.h"
#include "engine/kernels/gpu_rows.h"

namespace lockstep {

inline constexpr size_t kGpuProductTokens = 256;
inline constexpr size_t kGpuProductParts = 3;
inline constexpr size_t kGpuProductNorms = 2;

// All pointers are the device's; none where said so. Strides count elements unless in bytes.

// 1 / sqrt(sum / columns + epsilon), where a token's chunk sums are added by 32 lanes: lane i takes
// the chunks i, i + 32 ... in this order, and the lanes are added pairwise, 16, 8, 4, 2, 1 apart.
struct GpuNormFactor {
  const float* chunk_sums = nullptr;  // none: no factor
  size_t stride = 0;
  size_t columns = 0;  // 32 to a chunk
  float epsilon = 0;
};

// y * weight to `rows`; per 32 rows of the product the sum of y^2, as KernelTable::weigh forms it.
struct GpuNormOutput {
  const float* weight = nullptr;  // of the product's rows
  GpuRows rows;
  float* chunk_sums = nullptr;
  size_t chunk_stride = 0;
  // Which row of `rows` and of the sums each token has; kGpuNoRow: it has none. None: its own.
  const uint32_t* row_of_token = nullptr;
};

struct GpuPart {
  GpuMatrix matrix;
  const float* bias = nullptr;  // or none
  float* output = nullptr;      // [token][row]; none with a gate
  size_t output_stride = 0;
  bool accumulate = false;
  float scale = 1;  // of the matrix
};

enum class GpuFinish : uint8_t {
  kPlain,
  kNorms,  // of the only part's y
  kGate,   // silu(the first part's y) * the second's; both of one format and shape
};

struct GpuProduct {
  // Rows of bf16, zero in the columns up to the next multiple of 32; for F32 weights f32, readable
  // up to the next multiple of 4. 16-byte aligned, as the stride is.
  const std::byte* input = nullptr;
  size_t input_stride_bytes = 0;
  // The launch computes those of the tokens [token_begin, token_begin + token_limit) below
  // *token_count, which the kernel reads; every array is indexed by the token. So windows that
  // follow one another compute a prompt. One that holds no token reads its first weights for
  // nothing.
  const uint32_t* token_count = nullptr;
  size_t token_begin = 0;
  size_t token_limit = 0;  // 1 to kGpuProductTokens
  GpuNormFactor norm;
  size_t part_count = 0;  // of one number of columns
  GpuPart parts[kGpuProductParts];
  GpuFinish finish = GpuFinish::kPlain;
  size_t norm_count = 0;
  GpuNormOutput norms[kGpuProductNorms];
  GpuRows gate;
  // Space for the 8 sums of each element, which lets more multiprocessors take a part of a product
  // of few rows; whatever it is, no bit changes. None: it is not done.
  float* partials = nullptr;
  size_t partial_floats = 0;
};

// Launches it on `stream` (a cudaStream_t): one kernel per run of parts of one format, of more than
// 8 tokens one or two, of F32 weights one for every 64 tokens. Can be captured into a graph.
void gpu_product(void* stream, const GpuProduct& product);

// The norm of the tokens from this one on. Which row a token is given stays.
inline GpuNormOutput norm_from(GpuNormOutput norm, size_t token) {
  const auto advance = [token](auto*& array, size_t stride) {
    if (array != nullptr) array += token * stride;
  };
  advance(norm.row_of_token, 1);
  if (norm.row_of_token != nullptr) return norm;
  advance(norm.rows.bf16, norm.rows.bf16_stride);
  advance(norm.rows.f32, norm.rows.f32_stride);
  advance(norm.chunk_sums, norm.chunk_stride);
  return norm;
}

}  // namespace lockstep
