// Keys and values into a page of the cache; see attention.h. Written over the small vector type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/attention.h"
#include "engine/kernels/cpu/attention_tiles.inl.h"

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
inline void append_key_elements(const KvRow& row, size_t slot, std::byte* block) {
  auto* keys = reinterpret_cast<Element*>(block);
  each_sixteen(row.key_dimension, [&](size_t begin, size_t count) {
    Element converted[16];
    store_elements(converted, load_first(row.key + begin, count), row.format.keys);
    for (size_t i = 0; i < count; ++i) keys[(begin + i) * kPageTokens + slot] = converted[i];
  });
}

// Dimensions beyond the last become zero.
template <typename Element>
inline void append_value_elements(const KvRow& row, size_t slot, std::byte* block) {
  auto* values = reinterpret_cast<Element*>(block);
  values += slot * ((row.value_dimension + 15) / 16 * 16);
  each_sixteen(row.value_dimension, [&](size_t begin, size_t count) {
    store_elements(values + begin, load_first(row.value + begin, count), row.format.values);
  });
}

// A block of 32 elements as it is stored; see attention.h.
template <KvFormat kFormat>
struct KvBlock {
  alignas(16) std::byte quants[quant_bytes(kFormat, kKvBlockDimensions)];
  uint16_t scale;
};

// The f16 of a scale, at most 65504 from 0; NaN if an element is no finite number.
inline uint16_t stored_scale(float scale, F32x16 first, F32x16 second) {
  const float check = sum_lanes(add(mul(first, zero()), mul(second, zero())));
  const F32x16 bounded = max(min(broadcast(scale), broadcast(65504.0F)), broadcast(-65504.0F));
  uint16_t halves[16];
  store_half(halves, add(bounded, broadcast(check)));
  return halves[0];
}

// The quants of 16 elements; `scale`: as it is stored, in every lane.
inline F32x16 quants_of(F32x16 x, F32x16 scale, float least, float most) {
  const F32x16 rounded = min(max(round(div(x, scale)), broadcast(least)), broadcast(most));
  // A scale of 0 makes 0 of its elements here, so that no conversion sees the quotients; so does
  // one that is NaN.
  return select_less(zero(), abs(scale), rounded, zero());
}

inline F32x16 broadcast_half(uint16_t half) {
  uint16_t halves[16];
  for (uint16_t& each : halves) each = half;
  return load_half(halves);
}

inline void quantize_block(const float* values, KvBlock<KvFormat::kQ8_0>& block) {
  const F32x16 first = load(values);
  const F32x16 second = load(values + 16);
  const float greatest = max_lanes(max(abs(first), abs(second)));
  block.scale = stored_scale(greatest / 127.0F, first, second);
  const F32x16 scale = broadcast_half(block.scale);
  store_int8(block.quants, quants_of(first, scale, -127.0F, 127.0F));
  store_int8(block.quants + 16, quants_of(second, scale, -127.0F, 127.0F));
}

inline void quantize_block(const float* values, KvBlock<KvFormat::kQ4_0>& block) {
  const F32x16 first = load(values);
  const F32x16 second = load(values + 16);
  const float greatest = max_lanes(max(first, second));
  const float least = -max_lanes(max(sub(zero(), first), sub(zero(), second)));
  const float farthest = greatest > -least ? greatest : least;
  block.scale = stored_scale(farthest / -8.0F, first, second);
  const F32x16 scale = broadcast_half(block.scale);
  alignas(16) std::byte lower[16];
  alignas(16) std::byte upper[16];
  const F32x16 offset = broadcast(8.0F);
  store_int8(lower, add(quants_of(first, scale, -8.0F, 7.0F), offset));
  store_int8(upper, add(quants_of(second, scale, -8.0F, 7.0F), offset));
  for (size_t i = 0; i < 16; ++i) {
    block.quants[i] = static_cast<std::byte>(static_cast<unsigned>(lower[i]) |
                                             static_cast<unsigned>(upper[i]) << 4U);
  }
}

template <KvFormat kFormat>
inline void append_key_blocks(const KvRow& row, size_t slot, std::byte* keys) {
  constexpr size_t kBytes = quant_bytes(kFormat, kKvBlockDimensions);
  auto* scales =
      reinterpret_cast<uint16_t*>(keys + quant_bytes(kFormat, row.key_dimension * kPageTokens));
  KvBlock<kFormat> stored;
  for (size_t block = 0; block < row.key_dimension / kKvBlockDimensions; ++block) {
    quantize_block(row.key + block * kKvBlockDimensions, stored);
    for (size_t i = 0; i < kBytes; ++i) {
      keys[(block * kBytes + i) * kPageTokens + slot] = stored.quants[i];
    }
    scales[block * kPageTokens + slot] = stored.scale;
  }
}

template <KvFormat kFormat>
inline void append_value_blocks(const KvRow& row, size_t slot, std::byte* values) {
  constexpr size_t kBytes = quant_bytes(kFormat, kKvBlockDimensions);
  const size_t blocks = row.value_dimension / kKvBlockDimensions;
  auto* scales =
      reinterpret_cast<uint16_t*>(values + quant_bytes(kFormat, row.value_dimension * kPageTokens));
  KvBlock<kFormat> stored;
  for (size_t block = 0; block < blocks; ++block) {
    quantize_block(row.value + block * kKvBlockDimensions, stored);
    __builtin_memcpy(values + (slot * blocks + block) * kBytes, stored.quants, kBytes);
    scales[slot * blocks + block] = stored.scale;
  }
}

inline void append_kv(const KvRow& row, size_t slot, std::byte* keys, std::byte* values) {
  with_stored_form(row.format.keys, [&]<KvFormat kFormat>() {
    if constexpr (has_scales(kFormat)) {
      append_key_blocks<kFormat>(row, slot, keys);
    } else if constexpr (kFormat == KvFormat::kF32) {
      append_key_elements<float>(row, slot, keys);
    } else {
      append_key_elements<uint16_t>(row, slot, keys);
    }
  });
  if (row.value_dimension == 0) return;
  with_stored_form(row.format.values, [&]<KvFormat kFormat>() {
    if constexpr (has_scales(kFormat)) {
      append_value_blocks<kFormat>(row, slot, values);
    } else if constexpr (kFormat == KvFormat::kF32) {
      append_value_elements<float>(row, slot, values);
    } else {
      append_value_elements<uint16_t>(row, slot, values);
    }
  });
}

}  // namespace
}  // namespace lockstep
