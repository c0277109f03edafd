// Keys and values into a page of the cache; see attention.h. Written over the small vector type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/attention.h"

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

// Calls store(first dimension, dimensions) for each 16 of them.
template <typename Store>
inline void each_sixteen(size_t dimension, Store store_some) {
  for (size_t begin = 0; begin < dimension; begin += 16) {
    const size_t left = dimension - begin;
    store_some(begin, left < 16 ? left : 16);
  }
}

template <typename Element>
inline void append_elements(const KvRow& row, size_t slot, Element* keys, Element* values) {
  Element* value_row = values + slot * ((row.value_dimension + 15) / 16 * 16);
  // Dimensions beyond the last become zero.
  each_sixteen(row.value_dimension, [&](size_t begin, size_t count) {
    store_elements(value_row + begin, load_first(row.value + begin, count), row.format);
  });
  each_sixteen(row.key_dimension, [&](size_t begin, size_t count) {
    Element converted[16];
    store_elements(converted, load_first(row.key + begin, count), row.format);
    for (size_t i = 0; i < count; ++i) keys[(begin + i) * kPageTokens + slot] = converted[i];
  });
}

// Blocks of kQ8_0; see attention.h.
struct KvBlock {
  alignas(16) std::byte quants[kKvBlockDimensions];
  uint16_t scale;
};

inline KvBlock quantize_block(const float* values) {
  const F32x16 first = load(values);
  const F32x16 second = load(values + 16);
  const float greatest = max_lanes(max(abs(first), abs(second)));
  // 0, or NaN if an element is no finite number.
  const float check = sum_lanes(add(mul(first, zero()), mul(second, zero())));
  uint16_t halves[16];
  store_half(halves, add(min(broadcast(greatest / 127.0F), broadcast(65504.0F)), broadcast(check)));
  const F32x16 scale = load_half(halves);
  // A scale of 0 makes 0 of its elements here, so that no conversion sees the quotients; so does
  // one that is NaN.
  const auto quants = [&](F32x16 x) {
    const F32x16 rounded = min(max(round(div(x, scale)), broadcast(-127.0F)), broadcast(127.0F));
    return select_less(zero(), scale, rounded, zero());
  };
  KvBlock block;
  store_int8(block.quants, quants(first));
  store_int8(block.quants + 16, quants(second));
  block.scale = halves[0];
  return block;
}

inline void append_quantized(const KvRow& row, size_t slot, std::byte* keys, std::byte* values) {
  const size_t value_blocks = row.value_dimension / kKvBlockDimensions;
  auto* value_scales = reinterpret_cast<uint16_t*>(values + row.value_dimension * kPageTokens);
  for (size_t block = 0; block < value_blocks; ++block) {
    const size_t begin = block * kKvBlockDimensions;
    const KvBlock of_value = quantize_block(row.value + begin);
    __builtin_memcpy(values + slot * row.value_dimension + begin, of_value.quants,
                     sizeof of_value.quants);
    value_scales[slot * value_blocks + block] = of_value.scale;
  }
  auto* key_scales = reinterpret_cast<uint16_t*>(keys + row.key_dimension * kPageTokens);
  for (size_t block = 0; block < row.key_dimension / kKvBlockDimensions; ++block) {
    const size_t begin = block * kKvBlockDimensions;
    const KvBlock of_key = quantize_block(row.key + begin);
    for (size_t i = 0; i < kKvBlockDimensions; ++i) {
      keys[(begin + i) * kPageTokens + slot] = of_key.quants[i];
    }
    key_scales[block * kPageTokens + slot] = of_key.scale;
  }
}

inline void append_kv(const KvRow& row, size_t slot, std::byte* keys, std::byte* values) {
  if (row.format == KvFormat::kF32) {
    append_elements(row, slot, reinterpret_cast<float*>(keys), reinterpret_cast<float*>(values));
  } else if (row.format == KvFormat::kQ8_0) {
    append_quantized(row, slot, keys, values);
  } else {
    append_elements(row, slot, reinterpret_cast<uint16_t*>(keys),
                    reinterpret_cast<uint16_t*>(values));
  }
}

}  // namespace
}  // namespace lockstep
