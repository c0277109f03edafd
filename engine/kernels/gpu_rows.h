// Work of a GPU on rows that is no matrix product: the norms that products carry on, tables of
// rotary positions, the table of embeddings, and a plain read. Every array lies in the device's
// memory; a stream is a cudaStream_t. Nothing waits: a kernel runs when the stream's earlier work
// is done. An element's arithmetic depends on its row alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/gpu_batch.h"
#include "engine/kernels/gpu_matrix.h"

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
// logit_tokens[t], or, where the residual has rows of logits alone, of its own.
struct GpuNormRows {
  GpuBatch batch;
  GpuRowSet which = GpuRowSet::kTokens;
  bool has_logit_rows = false;  // with kLogits: the residual
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

// The rows of a table that stand for tokens.
inline constexpr size_t kGpuEmbeddingCopies = 15;

// output[token] = row (the token's id, or another number of it, - row_begin) of the table, bit for
// bit what dequantizing the file's row gives. Tokens whose row the table does not have are left
// alone, or become -0, to which anything can be added without changing a bit: other ranks have
// them.
struct GpuEmbedding {
  GpuBatch batch;
  GpuMatrix table;
  const uint32_t* ids = nullptr;  // [token]: the batch's token_ids, positions or segments
  // [logit row]: the tokens that ids with kGpuPickOfRow stand for; null: no id has that bit.
  const uint32_t* picks = nullptr;
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

// Reading memory for the time it takes: what a kernel can have that does nothing else. The bytes of
// a slice, which a warp reads.
inline constexpr size_t kGpuReadStretch = size_t{16} << 10U;

// sums[s] = the sum of the 32-bit words of stretch s, modulo 2^32, so in whatever order. Of no
// bytes it is an empty kernel: one block, which ends at once.
struct GpuRead {
  const std::byte* memory = nullptr;  // 16-byte aligned
  size_t bytes = 0;                   // a multiple of kGpuReadStretch
  uint32_t* sums = nullptr;
};
void gpu_read_memory(void* stream, const GpuRead& read);

}  // namespace lockstep
