// Work of a GPU on rows of activations that is no matrix product. Every array lies in the device's
// memory; a stream is a cudaStream_t. Nothing waits: a kernel runs when the stream's earlier work
// is done. An element's arithmetic depends on its row alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/gpu_batch.h"

namespace lockstep {

// Which rows a kernel walks over, by GpuBatchCounts.
enum class GpuRowSet : uint8_t { kTokens, kLogits };

// The place for rows of activations, in bf16 (nearest even), in f32 (as they are), or both; strides
// count elements. Of bf16 the columns up to the next multiple of 32 become zero.
struct GpuRows {
  uint16_t* bf16 = nullptr;
  size_t bf16_stride = 0;
  float* f32 = nullptr;
  size_t f32_stride = 0;
};

// rows[t][i] = residual[t][i] * weight[i], and sums[t][chunk], the sum of the squares of 32 columns
// of the residual (the last may be fewer):
//   lane i of 16 = fma(x[i + 16], x[i + 16], x[i]^2), absent columns being 0; the lanes are added
//   pairwise, 8, 4, 2, 1 apart
// as KernelTable::weigh forms it, to the bit. With kLogits, row t is of the residual's row
// logit_tokens[t].
struct GpuNormRows {
  GpuBatch batch;
  GpuRowSet which = GpuRowSet::kTokens;
  const float* residual = nullptr;
  size_t residual_stride = 0;  // floats
  size_t columns = 0;
  const float* weight = nullptr;
  GpuRows rows;
  float* sums = nullptr;
  size_t sum_stride = 0;   // floats
  unsigned grid_rows = 1;  // blocks that share the rows
};
void gpu_norm_rows(void* stream, const GpuNormRows& norm);

// rows[t][i] = input[t][i], or (input / (1 + exponential(-input))) * up where there is an `up`.
struct GpuFormRows {
  GpuBatch batch;
  GpuRowSet which = GpuRowSet::kTokens;
  unsigned rows_each = 1;  // so many for each of those: of experts
  const float* input = nullptr;
  const float* up = nullptr;  // or none; rows as the input's
  size_t input_stride = 0;    // floats
  size_t columns = 0;
  GpuRows rows;
  unsigned grid_rows = 1;
};
void gpu_form_rows(void* stream, const GpuFormRows& form);

// table[token]: the cosines, then the sines of position * frequency of every pair, times
// `magnitude`. All of it is double, rounded once: as the CPU's but for the last bit of a double,
// once a pass, and nothing but the batch is copied to the device.
struct GpuRotaryTable {
  GpuBatch batch;
  const double* frequencies = nullptr;
  size_t pairs = 0;
  float* table = nullptr;
  size_t stride = 0;  // floats; at least 2 * pairs
  double magnitude = 1;
  unsigned grid_rows = 1;
};
void gpu_rotary_table(void* stream, const GpuRotaryTable& rotary);

}  // namespace lockstep
