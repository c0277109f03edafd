// Attention on a GPU, over keys and values that are in the cache already, those of the same pass
// included. Every array lies in the device's memory; a stream is a cudaStream_t.
//
// A token's result is a function of the token and its sequence: neither its neighbours in the
// batch, nor the grid, nor where its pages lie change a bit of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/checked_math.h"
#include "engine/kernels/gpu_batch.h"
#include "engine/kernels/gpu_heads.h"

namespace lockstep {

// Rows of [query head][value_dimension], in one or both forms; 16-byte aligned, as the strides are.
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
  const float* queries = nullptr;  // [token][head][key_dimension], prepared; 16-byte aligned
  size_t query_stride = 0;         // floats, a multiple of 4
  unsigned head_count = 0;
  unsigned kv_head_count = 0;
  unsigned group = 1;
  unsigned group_offset = 0;
  unsigned window = 0;  // most keys that a token sees; 0: all before it
  float scale = 0;
  GpuAttentionOutput output;
  // The partial results of generated tokens, by unit of the batch: [unit][head][value_dimension],
  // 16-byte aligned; [unit][head][2], the maximum and the sum; and [unit][head], how many of a
  // token's blocks have left theirs: all 0 before a launch and after it.
  float* partial_outputs = nullptr;
  float* partial_sums = nullptr;
  uint32_t* arrived = nullptr;
  unsigned grid_rows = 1;  // blocks that share the units, the tokens or the tiles
  unsigned section = 0;    // tokens of a section, of which one sees no other's keys; 0: no sections
  float score_cap = 0;     // scaled scores become cap * tangent(score / cap); 0: no cap
  const float* sinks = nullptr;   // [query head]: one more score, which has no value; or none
  const float* slopes = nullptr;  // [query head]: of scores by the key's distance; or none
  // Most keys behind its own that a token sees, of those of its sequence (GpuBatch::lengths).
  unsigned ahead = 0;
};

// The number of keys that a block has in its shared memory at once: a page's, or fewer of large
// heads.
constexpr unsigned gpu_attention_step(KvFormat format, size_t key_dimension,
                                      size_t value_dimension) {
  // All GPUs have 99 KiB for a block. Queries, outputs and what else comes beside keys and values
  // takes most for large heads.
  constexpr size_t kBytesMost = 72 << 10;
  const size_t element = format == KvFormat::kF32 ? 4 : format == KvFormat::kQ8_0 ? 1 : 2;
  const size_t bytes = element * (key_dimension + round_up<size_t>(value_dimension, 16));
  const size_t beside = 16 * (key_dimension + value_dimension);
  unsigned keys = kPageTokens;
  while (keys * bytes + beside > kBytesMost) keys /= 2;
  return keys;
}

// Attention of the batch's generated tokens that have units (GpuBatchCounts::split), none of which
// sees later keys. A unit has the
// keys of so many pages that a token has gpu_token_units() at most: of the pages that it sees keys
// of, as many in each as are needed for that, from the first on; the last may have fewer. A block
// takes a unit for up to 8 query heads of a KV head. It takes its keys in steps, from positions
// that are multiples of gpu_attention_step(); per query, in f32, from M = -FLT_MAX, L = 0, O = 0
// on:
//   score[t] = dimension 8 * i + j belongs to part i % 4; a part is a chain of fma over its
//              dimensions, ascending, from 0; ((part 0 + part 1) + (part 2 + part 3)) * scale;
//              with a cap, then tangent(score / cap) * cap
//              with a slope, then fma(slope, -|the key's position - the token's|, score)
//   M'       = the greatest of M and the scores of the step's keys that the token sees
//   p[t]     = exponential(score[t] - M'), 0 outside the token's keys
//   L'       = fma(L, exponential(M - M'), sum); lane i of 32 adds p[i] + p[i + 32] of the
//              step, the lanes are added pairwise, 16, 8, 4, 2, 1 apart
//   O        : chain c of min(1024 / value_dimension, keys of a step / 2) (rounded down) takes the
//              step's pairs of neighbours c, c + chains ..: first O * exponential(M - M'), then fma
//              of p[t] * value[t], ascending. After the last step the chains are added in order.
// The units are merged in order into M = -FLT_MAX, L = 0, O = 0, whichever block does it:
//   M' = max(M, M of the unit); old = exponential(M - M'); new = exponential(M of the unit - M')
//   L = fma(L of the unit, new, L * old);  O = fma(O of the unit, new, O * old)
// and the result is O / L; with a sink s, M' = max(M, s), and it is
//   (O * exponential(M - M')) / fma(L, exponential(M - M'), exponential(s - M'))
//
// `unprepared`: the heads of the batch, whose tokens are all generated, have units, and are each
// the only one of its sequence: they are prepared in the same launch, as gpu_prepare_heads does it,
// but for the queries, which stay as they were. None: all heads are prepared.
void gpu_attend_generated(void* stream, const GpuAttention& attention,
                          const GpuHeads* unprepared = nullptr);

// Attention of the other generated tokens, with the same bits, slowly: a block per token and 8
// heads walks over all units. It needs no memory for partial results. All heads are prepared.
void gpu_attend_walked(void* stream, const GpuAttention& attention);

// Attention of the batch's prompted tokens: by tile products where gpu_has_prompt_tiles, else as
// gpu_attend_walked does.
//
// By tile products, keys are taken in chunks of a page, in order of position; a row is a token:
//   queries, keys and values are rounded to f16 (of an F16 cache; queries at most 65504) or bf16,
//   score = the product, 16 dimensions at a time, f32; with a cap, then
//           tangent(score * scale / cap) * (cap / scale); with a slope, then
//           fma(slope / scale, -|the key's position - the token's|, score)
//   e = scale * log2(e), rounded; `scale` > 0
//   M' = the greater of M (at first -FLT_MAX) and of the chunk's scores that the token sees
//   O = O * 2^((M - M') * e), L alike, per lane
//   p = 2^fma(score, e, -(M' * e)), 0 outside the token's keys; L = L + p, before p is rounded
//   O = O + the product of p, rounded as the keys are, and the values, 16 keys at a time
// and the result is O * (1 / L); with a sink s, M and s being scaled, M' = max(M, s), and it is
//   O * (exponential(M - M') / fma(L, exponential(M - M'), exponential(s - M')))
// A chunk that a token sees nothing of leaves it as it was. (A later token of the same tile whose
// value is infinite or NaN may make the tile's earlier ones NaN.)
void gpu_attend_prompted(void* stream, const GpuAttention& attention);
inline constexpr size_t kGpuPromptTileDimensions = 256;
constexpr bool gpu_has_prompt_tiles(KvFormat format, size_t key_dimension, size_t value_dimension) {
  return format != KvFormat::kF32 && key_dimension <= kGpuPromptTileDimensions &&
         value_dimension <= kGpuPromptTileDimensions;
}

}  // namespace lockstep
