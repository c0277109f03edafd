#include "engine/kernels/attention.h"

#include "engine/base/checked_math.h"

namespace lockstep {

AttentionChunks attention_chunks(size_t position, size_t window) {
  const size_t end = position + 1;
  const size_t begin = window == 0 || window > end ? 0 : end - window;
  return {begin / kAttentionChunkTokens, position / kAttentionChunkTokens + 1};
}

size_t attention_partial_floats(size_t query_count, size_t head_dimension) {
  // The maximums and the sums, and a row of output for each query: see cpu/attention_walk.inl.h.
  return 2 * round_up<size_t>(query_count, 16) + query_count * round_up<size_t>(head_dimension, 16);
}

}  // namespace lockstep
