// Operations of a GPU on values in f32 that are a part of no product: functions of each element,
// norms of whole rows, norms and rotary positions of heads, copies of heads' columns, means of
// rows. Every array lies in the device's memory; a stream is a cudaStream_t. Nothing waits: a
// kernel runs when the stream's earlier work is done. An element's arithmetic depends on its row
// alone.
//
// Each operation rounds once, unless said otherwise. A function of the device's (exponential,
// tangent, logarithm ...) is off by some units in the last place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/activation_function.h"
#include "engine/kernels/gpu_batch.h"
#include "engine/kernels/gpu_product.h"
#include "engine/kernels/gpu_rows.h"
#include "engine/kernels/rotary.h"

namespace lockstep {

// The rows that a kernel walks over: of the batch, or of experts.
struct GpuWalk {
  GpuBatch batch;
  GpuRowSet which = GpuRowSet::kTokens;
  // With kTokens: the rows of experts, so many for each token. 0: the tokens' own.
  unsigned rows_each = 0;
  const uint32_t* row_tokens = nullptr;  // GpuRouting's, with rows_each
  unsigned grid_rows = 1;                // blocks that share the rows
};

// The destination of values: f32 rows, rows of activations, or both.
struct GpuValues {
  float* floats = nullptr;  // or none
  size_t stride = 0;        // floats
  GpuRows rows = {};
};

enum class GpuFunction : uint8_t {
  kZero,         // 0
  kMinusZero,    // -0, to which anything can be added without changing a bit
  kCopy,         // x
  kAdd,          // x + y
  kScale,        // scale * x
  kSoftCap,      // scale * tangent(x / scale)
  kClamp,        // x, at least -scale and at most scale
  kActivation,   // activation(x)
  kGate,         // activation(x) * y, of kClippedSwiglu * (the bounded y + 1)
  kScaleRows,    // activation(y) * x; y has one column
  kTemperature,  // (1 + scale * ln(1 + (position + offset) / period)) * x, the quotient rounded
                 // down and the factor in f64, rounded once
};

// The scales that experts' rows are multiplied with, and the biases that are added to them then.
struct GpuRowBiases {
  const float* biases = nullptr;  // of expert 0, the row of each expert's; or none
  size_t stride = 0;              // floats, from an expert's to the next one's
  const float* scales = nullptr;  // [expert]: of its matrix; or none
};

// The function of each element. x may be the output's floats.
//
// Activations, in this order of operations; e is the device's exponential:
//   kSilu          x / (1 + e(-x))
//   kGelu          (x * 0.5) * complement(x * -0.70710678), the complement of the error function
//   kGeluTanh      x / (1 + e(-(fma((x * x) * x, 0.044715, x) * 1.59576912)))
//   kGeluQuick     x / (1 + e(-(1.702 * x)))
//   kRelu          x, of negative x 0;  kReluSquared: its square
//   kSigmoid       1 / (1 + e(-x))
//   kXielu         x * fma(a, x, c) of positive x, else fma(b, expm1(min(x, d)) - x, c * x)
//   kClippedSwiglu z / (1 + e(-(a * z))), z = min(x, b); what it gates is 1 + y, bounded by b
struct GpuElementwise {
  GpuWalk walk;
  GpuFunction function = GpuFunction::kCopy;
  bool selects = false;  // with kLogits: x has a row for each token, of which the logits' are taken
  Activation activation = {};
  float scale = 0;
  uint32_t period = 1;  // kTemperature
  uint32_t offset = 0;  // likewise
  const float* x = nullptr;
  size_t x_stride = 0;  // floats
  const float* y = nullptr;
  size_t y_stride = 0;
  // With rows of experts: the row's weight multiplies x and y before all else. GpuRouting's, with
  // its rows of choices; none: nothing does.
  const float* weights = nullptr;
  const uint32_t* choice_rows = nullptr;
  // With rows of experts: the scales and biases of x and of y, next. `row_begin`: GpuRouting's;
  // needed where there are some.
  GpuRowBiases x_biases = {};
  GpuRowBiases y_biases = {};
  const uint32_t* row_begin = nullptr;
  size_t expert_count = 0;
  size_t columns = 0;
  GpuValues output;
  // The addresses of other ranks' copies of the rows in f32, in memory that this GPU reaches.
  size_t copy_count = 0;
  float* copies[kGpuEmbeddingCopies] = {};

  constexpr bool is_biased() const {
    return x_biases.biases != nullptr || x_biases.scales != nullptr || y_biases.biases != nullptr ||
           y_biases.scales != nullptr;
  }
};
void gpu_compute_elements(void* stream, const GpuElementwise& step);

// The sums of the squares of a value's chunks of 32 columns, as gpu_norm_rows() forms them, for a
// norm of columns that several ranks have parts of: of its own chunks, which follow `first` others.
struct GpuChunkSums {
  GpuWalk walk;
  const float* x = nullptr;
  size_t x_stride = 0;  // floats
  size_t columns = 0;
  float* sums = nullptr;  // [row][chunk]
  size_t sum_stride = 0;  // floats
  size_t first = 0;
  // Not 0: of so many chunks all others become -0, to which anything can be added without changing
  // a bit.
  size_t all_chunks = 0;
  // The addresses of other ranks' copies of the sums, in memory that this GPU reaches.
  size_t copy_count = 0;
  float* copies[kGpuEmbeddingCopies] = {};
};
void gpu_sum_chunks(void* stream, const GpuChunkSums& sums);

// The norm of whole rows: ((x - mean) * factor) * weight + bias, without the parts that are absent.
// Each of 256 threads, thread i, takes the columns i, i + 256 ... in this order, from 0; the 32 of
// a warp are added pairwise, 16, 8, 4, 2, 1 apart, and the 8 warps' sums from the first to the
// last. So
//   mean = the sum of the x / columns, or 0;  factor = 1 / root(the sum of d^2 / columns + epsilon)
// where d = x - mean, and squares are added by fma.
// Or of some columns of rows, whose factor is GpuNormFactor's, of all ranks' chunks.
struct GpuWholeNorm {
  GpuWalk walk;
  const float* x = nullptr;
  size_t x_stride = 0;  // floats
  size_t columns = 0;
  bool subtracts_mean = false;
  float epsilon = 0;
  const float* weight = nullptr;  // or none
  const float* bias = nullptr;    // or none
  GpuValues output;
  GpuNormFactor factor = {};  // without chunk sums: rows are whole
};
void gpu_norm_whole_rows(void* stream, const GpuWholeNorm& norm);

// Each head of tokens' rows by itself: a norm (if any), then rotary positions (if any). Sums are
// formed as GpuHeads has them, of x or, with a mean, of x and then of (x - mean)^2; then
// ((x - mean) * factor) * weight, and the rotation of GpuHeads.
struct GpuHeadRows {
  GpuWalk walk;  // of tokens
  const float* input = nullptr;
  size_t input_stride = 0;  // floats
  unsigned head_count = 0;
  unsigned head_dimension = 0;
  bool is_normed = false;
  bool subtracts_mean = false;
  const float* norm = nullptr;  // its weight, or none
  size_t norm_stride = 0;       // from one head's weight to the next; 0: all have the same
  float epsilon = 0;
  RotaryPairs pairs = RotaryPairs::kInterleaved;
  const float* rotary_table = nullptr;  // GpuRotaryTable's, or none
  size_t rotary_stride = 0;
  unsigned rotary_dimensions = 0;
  float* output = nullptr;
  size_t output_stride = 0;
};
void gpu_treat_head_rows(void* stream, const GpuHeadRows& heads);

// Some columns of each head of a value.
struct GpuHeadColumns {
  const float* input = nullptr;
  size_t stride = 0;       // floats, from row to row
  size_t head_stride = 0;  // columns; 0: one head for all
  size_t first = 0;        // of a head's columns
  size_t columns = 0;
};
inline constexpr size_t kGpuHeadParts = 2;

// A copy of all parts' columns of each head, one part's after another's.
struct GpuHeadCopy {
  GpuWalk walk;
  size_t part_count = 0;
  GpuHeadColumns parts[kGpuHeadParts] = {};
  size_t columns = 0;  // of all heads
  GpuValues output;
};
void gpu_copy_heads(void* stream, const GpuHeadCopy& copy);

// For each token whose logits are asked for the mean of the rows of its sequence's tokens, all of
// which are in the batch: a column is summed in f64, in order of position from 0 on, and the
// quotient is rounded to f32.
struct GpuRowMeans {
  GpuWalk walk;  // of logits
  const float* x = nullptr;
  size_t x_stride = 0;  // floats
  size_t columns = 0;
  GpuValues output;
};
void gpu_mean_rows(void* stream, const GpuRowMeans& means);

}  // namespace lockstep
