// The treatment of queries, keys and values on a GPU between their product and attention. Every
// array lies in the device's memory; a stream is a cudaStream_t.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/attention.h"
#include "engine/kernels/gpu_batch.h"
#include "engine/kernels/rotary.h"

namespace lockstep {

inline constexpr size_t kGpuMaxHeadDimension = 512;

// The cache of one layer: for each of the rank's KV heads a run of pages, in each page the keys'
// block and then the values'. The blocks have the sizes and the numbers of attention.h, their
// elements another order, in which 16 consecutive bytes are what one thread wants:
//   keys    [key_dimension / 8][kPageTokens][8]: 8 dimensions of a token together
//   values  [kPageTokens / 2][value_dimension rounded up to 16][2]: of two neighbours a dimension,
//           as a tile product takes them
// and after kQ8_0's quants the scales, as there. Slots that hold no token may be anything, NaN
// included: no page is ever cleared.
struct GpuKvLayer {
  KvFormat format = KvFormat::kF16;
  // Multiples of 8, at most kGpuMaxHeadDimension.
  unsigned key_dimension = 0;    // of a head's keys and queries
  unsigned value_dimension = 0;  // of its values and outputs
  std::byte* blocks = nullptr;   // page 0 of KV head 0; 16-byte aligned
  size_t head_stride_bytes = 0;  // from a KV head's page 0 to the next one's
  size_t page_stride_bytes = 0;  // from page to page
};

// Per token and head: norm (if any) and rotary positions (if any), in this order unless
// `norm_is_last`; queries stay where they are, keys and values go into the cache. A head's
// arithmetic:
//   norm   lane i of 32 adds the squares of dimensions i, i + 32 .. by fma, ascending, from 0; the
//          lanes are added pairwise, 16, 8, 4, 2, 1 apart; factor = 1 / root(sum / dimensions +
//          epsilon); x * factor * weight, from left to right
//   rotary first = fma(x, cosine, -(y * sine)), second = fma(x, sine, y * cosine)
struct GpuHeads {
  GpuBatch batch;
  GpuKvLayer kv;
  float* queries = nullptr;  // [token][head][key_dimension]; changed in place
  size_t query_stride = 0;   // floats, from token to token
  // [token][KV head][key_dimension] and [token][KV head][value_dimension]; none: an earlier layer
  // has stored them, and there are no KV heads here.
  const float* keys = nullptr;
  const float* values = nullptr;
  size_t key_stride = 0;  // floats
  size_t value_stride = 0;
  unsigned head_count = 0;
  unsigned kv_head_count = 0;
  const float* query_norm = nullptr;  // or none
  const float* key_norm = nullptr;
  float epsilon = 0;
  bool norm_is_last = false;
  RotaryPairs pairs = RotaryPairs::kInterleaved;
  const float* rotary_table = nullptr;  // GpuRotaryTable's, or none
  size_t rotary_stride = 0;
  unsigned rotary_dimensions = 0;  // of a head the first so many; even
  unsigned grid_rows = 1;          // blocks that share the tokens
};
void gpu_prepare_heads(void* stream, const GpuHeads& heads);

}  // namespace lockstep
