#include "engine/kernels/kv_format.h"

#include "engine/base/checked_math.h"

namespace lockstep {

namespace {

size_t element_bytes(KvFormat format) {
  return format == KvFormat::kF32 ? 4 : 2;
}

}  // namespace

size_t key_block_bytes(KvFormat format, size_t head_dimension) {
  return head_dimension * kPageTokens * element_bytes(format);
}

size_t value_block_bytes(KvFormat format, size_t head_dimension) {
  return kPageTokens * round_up<size_t>(head_dimension, 16) * element_bytes(format);
}

}  // namespace lockstep
