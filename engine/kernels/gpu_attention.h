// Attention on a GPU, over keys and values that are in the cache already, those of the same pass
// included. Every array lies in the device's memory; a stream is a cudaStream_t.
//
// A token's result is a function of the token and its sequence: neither its neighbours in the
// batch, nor the grid, nor where its pages lie change a bit of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/attention.h"
#include "engine/kernels/gpu_batch.h"
#include "engine/kernels/gpu_heads.h"

namespace lockstep {

// Rows of [query head][head_dimension], in one or both forms.
struct GpuAttentionOutput {
  float* floats = nullptr;   // or none
  size_t float_stride = 0;   // floats, from token to token
  uint16_t* bf16 = nullptr;  // or none; zeros up to the next multiple of 32 columns
  size_t bf16_stride = 0;    // elements
};

// The query heads stand in groups that share a KV head. The first group may be without its first
// `group_offset` heads, the last without its last: other ranks have them.
struct GpuAttention {
  GpuBatch batch;
  GpuKvLayer kv;
  const float* queries = nullptr;  // [token][head][head_dimension], prepared; 16-byte aligned
  size_t query_stride = 0;         // floats, a multiple of 4
  unsigned head_count = 0;
  unsigned kv_head_count = 0;
  unsigned group = 1;
  unsigned group_offset = 0;
  unsigned window = 0;  // most keys that a token sees; 0: all before it
  float scale = 0;
  GpuAttentionOutput output;
  // Of generated tokens' chunks, by unit of the batch: [unit][head][head_dimension], 16-byte
  // aligned, and [unit][head][2], the maximum and the sum.
  float* partial_outputs = nullptr;
  float* partial_sums = nullptr;
  unsigned grid_rows = 1;   // blocks that share the units or the tiles
  unsigned token_rows = 1;  // blocks that share the tokens
};

// Of the batch's generated tokens that have units (GpuBatchCounts::split). Keys are taken in chunks
// of kAttentionChunkTokens by position, each by one block, which reads them once for up to 8 query
// heads; per query, in f32:
//   score[t] = (fma over the dimensions, ascending, from 0) * scale
//   maximum  = the greatest score of a key that the token sees
//   p[t]     = exponential(score[t] - maximum), 0 outside the token's keys
//   sum      : thread i of 128 adds p[i] + p[i + 128]; of a warp the threads are added pairwise,
//              16, 8, 4, 2, 1 apart, and the warps in order
//   output   : chain c of 512 / head_dimension (rounded down, at least 1; head_dimension rounded up
//              to 4) takes the pairs of neighbours c, c + chains ..: fma of p[t] * value[t],
//              ascending, from 0; the chains are added in order
// Then the chunks are merged in order, as attention.h says.
void gpu_attend_generated(void* stream, const GpuAttention& attention);

// Of the other generated tokens, with the same bits, slowly: a block per token and 8 heads walks
// over all chunks. It needs no room for partial results.
void gpu_attend_walked(void* stream, const GpuAttention& attention);

// Of the batch's prompted tokens: by tile products where gpu_has_prompt_tiles, else as
// gpu_attend_walked does.
//
// By tile products, keys are taken in chunks of a page, in order of position; a row is a token:
//   queries, keys and values are rounded to f16 (of an F16 cache; queries at most 65504) or bf16,
//   score = (the product, 16 dimensions at a time, f32) * scale
//   M' = the greater of M (at first -FLT_MAX) and of the chunk's scores that the token sees
//   O = O * exponential(M - M'), L alike, per lane
//   p = exponential(score - M'), 0 outside the token's keys; L = L + p, before p is rounded
//   O = O + the product of p, rounded as the keys are, and the values, 16 keys at a time
// and the result is O / L. A chunk that a token sees nothing of leaves it as it was. (A later token
// of the same tile whose value is infinite or NaN may make the tile's earlier ones NaN.)
void gpu_attend_prompted(void* stream, const GpuAttention& attention);
inline constexpr size_t kGpuPromptTileDimensions = 256;
constexpr bool gpu_has_prompt_tiles(KvFormat format, size_t head_dimension) {
  return format != KvFormat::kF32 && head_dimension <= kGpuPromptTileDimensions;
}

}  // namespace lockstep
