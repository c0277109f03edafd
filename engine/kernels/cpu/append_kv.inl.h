// Keys and values into a page of the cache; see kv_format.h. Written over the small vector type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/kv_format.h"

namespace lockstep {
namespace {

inline void store_elements(float* p, F32x16 a, KvFormat) {
  store(p, a);
}
inline void store_elements(uint16_t* p, F32x16 a, KvFormat format) {
  if (format == KvFormat::kF16) {
    store_half(p, a);
  } else {
    store_bf16(p, a);
  }
}

template <typename Element>
inline void append_elements(KvFormat format, size_t head_dimension, size_t slot, const float* key,
                            const float* value, Element* keys, Element* values) {
  Element* value_row = values + slot * ((head_dimension + 15) / 16 * 16);
  for (size_t begin = 0; begin < head_dimension; begin += 16) {
    const size_t left = head_dimension - begin;
    const size_t count = left < 16 ? left : 16;
    // Dimensions beyond the last become zero.
    store_elements(value_row + begin, load_first(value + begin, count), format);
    Element converted[16];
    store_elements(converted, load_first(key + begin, count), format);
    for (size_t i = 0; i < count; ++i) keys[(begin + i) * kPageTokens + slot] = converted[i];
  }
}

inline void append_kv(KvFormat format, size_t head_dimension, size_t slot, const float* key,
                      const float* value, std::byte* key_block, std::byte* value_block) {
  if (format == KvFormat::kF32) {
    append_elements(format, head_dimension, slot, key, value, reinterpret_cast<float*>(key_block),
                    reinterpret_cast<float*>(value_block));
  } else {
    append_elements(format, head_dimension, slot, key, value,
                    reinterpret_cast<uint16_t*>(key_block),
                    reinterpret_cast<uint16_t*>(value_block));
  }
}

}  // namespace
}  // namespace lockstep
