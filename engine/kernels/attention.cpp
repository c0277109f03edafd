#include "engine/kernels/attention.h"

#include "engine/base/attention_window.h"
#include "engine/base/checked_math.h"

namespace lockstep {
namespace {

size_t elements_bytes(KvFormat format, size_t count) {
  switch (format) {
    case KvFormat::kF32:
      return count * sizeof(float);
    case KvFormat::kF16:
    case KvFormat::kBf16:
      return count * sizeof(uint16_t);
    case KvFormat::kQ8_0:
      return count + count / kKvBlockDimensions * sizeof(uint16_t);
    case KvFormat::kQ4_0:
    case KvFormat::kQ4H:
      break;
  }
  return count / 2 + count / kKvBlockDimensions * sizeof(uint16_t);
}

}  // namespace

bool kv_format_fits(KvFormat format, size_t head_dimension) {
  const bool has_scales =
      format == KvFormat::kQ8_0 || format == KvFormat::kQ4_0 || format == KvFormat::kQ4H;
  return !has_scales || head_dimension % kKvBlockDimensions == 0;
}

size_t key_block_bytes(KvFormat format, size_t head_dimension) {
  return elements_bytes(format, head_dimension * kPageTokens);
}

size_t value_block_bytes(KvFormat format, size_t head_dimension) {
  return elements_bytes(format, kPageTokens * round_up<size_t>(head_dimension, 16));
}

size_t first_seen_key(size_t position, size_t window, size_t section) {
  return AttentionWindow{.tokens = window, .section = section}.first_seen(position);
}

AttentionChunks attention_chunks(size_t position, size_t window, size_t section) {
  const size_t begin = first_seen_key(position, window, section);
  return {begin / kAttentionChunkTokens, position / kAttentionChunkTokens + 1};
}

size_t attention_partial_floats(size_t query_count, size_t value_dimension) {
  // The maximums and the sums, and a row of output for each query: see cpu/attention_walk.inl.h.
  return 2 * round_up<size_t>(query_count, 16) +
         query_count * round_up<size_t>(value_dimension, 16);
}

}  // namespace lockstep
