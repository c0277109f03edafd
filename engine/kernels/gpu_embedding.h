// The rows of a table that stand for tokens, on a GPU. Every array lies in the device's memory; a
// stream is a cudaStream_t.
#pragma once

#include <cstddef>

#include "engine/kernels/gpu_batch.h"
#include "engine/kernels/gpu_matrix.h"

namespace lockstep {

inline constexpr size_t kGpuEmbeddingCopies = 15;

// output[token] = row (the token's id - row_begin) of the table, bit for bit what dequantizing the
// file's row gives. Tokens whose row the table does not have are left alone, or become -0, to which
// anything can be added without changing a bit: other ranks have them.
struct GpuEmbedding {
  GpuBatch batch;
  GpuMatrix table;
  size_t row_begin = 0;     // the id of the table's first row
  float* output = nullptr;  // [token][column]
  size_t output_stride = 0;
  unsigned grid_rows = 1;  // blocks that share the tokens
  bool others_zero = false;
  // The addresses of other ranks' copies of the output, in memory that this GPU reaches.
  size_t copy_count = 0;
  float* copies[kGpuEmbeddingCopies] = {};
};
void gpu_embed_rows(void* stream, const GpuEmbedding& embedding);

}  // namespace lockstep
