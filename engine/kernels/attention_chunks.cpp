#include "engine/kernels/kernel_table.h"

namespace lockstep {

AttentionChunks attention_chunks(size_t position, size_t window) {
  const size_t first = window == 0 || window > position ? 0 : position + 1 - window;
  return {first / kAttentionChunkTokens, position / kAttentionChunkTokens + 1};
}

size_t attention_partial_floats(size_t query_count, size_t head_dimension) {
  return query_count * (16 + round_up<size_t>(head_dimension, 16));
}

}  // namespace lockstep
