// Work of a GPU on rows of activations that is no matrix product. Every array lies in the device's
// memory; a stream is a cudaStream_t. Nothing waits: a kernel runs when the stream's earlier work
// is done. An element's arithmetic depends on its row alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/gpu_batch.h"

namespace lockstep {

// Which rows a kernel walks over, by GpuBatchCounts.
enum class GpuRows : uint8_t { kTokens, kLogits };

// rows[t][i] = bf16(residual[t][i] * weight[i]), zeros up to the next multiple of 32 columns, and
// sums[t][chunk], the sum of the squares of 32 columns of the residual (the last may be fewer):
//   lane i of 16 = fma(x[i + 16], x[i + 16], x[i]^2), absent columns being 0; the lanes are added
//   pairwise, 8, 4, 2, 1 apart
// as KernelTable::weigh forms it, to the bit. With kLogits, row t is of the residual's row
// logit_tokens[t].
struct GpuNormRows {
  GpuBatch batch;
  GpuRows which = GpuRows::kTokens;
  const float* residual = nullptr;
  size_t residual_stride = 0;  // floats
  size_t columns = 0;
  const float* weight = nullptr;
  uint16_t* rows = nullptr;  // bf16
  size_t row_stride = 0;     // elements
  float* sums = nullptr;
  size_t sum_stride = 0;   // floats
  unsigned grid_rows = 1;  // blocks that share the rows
};
void gpu_norm_rows(void* stream, const GpuNormRows& norm);

// factors[t] = 1 / root((the sum of sums[t], chunks ascending, from 0) / columns + epsilon)
struct GpuNormFactors {
  GpuBatch batch;
  GpuRows which = GpuRows::kTokens;
  const float* sums = nullptr;
  size_t sum_stride = 0;  // floats
  size_t columns = 0;
  float epsilon = 0;
  float* factors = nullptr;
  unsigned grid_rows = 1;
};
void gpu_norm_factors(void* stream, const GpuNormFactors& norm);

// rows[t][i] = bf16(input[t][i]), or bf16((input / (1 + exponential(-input))) * up) where there is
// an `up`; zeros up to the next multiple of 32 columns.
struct GpuFormRows {
  GpuBatch batch;
  GpuRows which = GpuRows::kTokens;
  const float* input = nullptr;
  const float* up = nullptr;  // or none; rows as the input's
  size_t input_stride = 0;    // floats
  size_t columns = 0;
  uint16_t* rows = nullptr;  // bf16
  size_t row_stride = 0;     // elements
  unsigned grid_rows = 1;
};
void gpu_form_rows(void* stream, const GpuFormRows& form);

// table[token]: the cosines, then the sines of position * frequency of every pair. The angles and
// their functions are double, rounded once: they are as the CPU's but for the last bit of a double,
// once a pass, and nothing but the batch is copied to the device.
struct GpuRotaryTable {
  GpuBatch batch;
  const double* frequencies = nullptr;
  size_t pairs = 0;
  float* table = nullptr;
  size_t stride = 0;  // floats; at least 2 * pairs
  unsigned grid_rows = 1;
};
void gpu_rotary_table(void* stream, const GpuRotaryTable& rotary);

}  // namespace lockstep
