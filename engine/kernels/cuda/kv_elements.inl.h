// Elements of the cache as a GPU keeps them (gpu_heads.h): where they lie, and how a thread reads
// and writes a few together. Included after gpu_code.h.
#pragma once

#include "engine/kernels/gpu_heads.h"

namespace lockstep {
namespace {

constexpr unsigned kKeyPiece = 8;    // dimensions of a key
constexpr unsigned kValuePiece = 4;  // dimensions of the values of two neighbours
constexpr unsigned kSlots = static_cast<unsigned>(kPageTokens);

// Calls work<kFormat>() for `format`: kernels are made for one format each. Formats of 4 bits have
// none, and placement refuses them (check_gpu_cache()).
template <typename Work>
void with_kv_format(KvFormat format, const Work& work) {
  switch (format) {
    case KvFormat::kF32:
      return work.template operator()<KvFormat::kF32>();
    case KvFormat::kF16:
      return work.template operator()<KvFormat::kF16>();
    case KvFormat::kBf16:
      return work.template operator()<KvFormat::kBf16>();
    case KvFormat::kQ8_0:
      return work.template operator()<KvFormat::kQ8_0>();
    case KvFormat::kQ4_0:
    case KvFormat::kQ4H:
      break;
  }
}

// One KV head's part of a page, or of so many slots of one in shared memory, laid out alike.
struct KvBlocks {
  std::byte* keys;
  std::byte* values;
  unsigned key_dimensions;
  unsigned value_dimensions;
  unsigned slots;
};

template <KvFormat kFormat>
constexpr unsigned kElementBytes = kFormat == KvFormat::kF32    ? 4
                                   : kFormat == KvFormat::kQ8_0 ? 1
                                                                : 2;

// Bits that an element's are, to be copied as they are.
template <unsigned kBytes>
struct BitsOf {
  using Type = uint32_t;
};
template <>
struct BitsOf<2> {
  using Type = uint16_t;
};
template <>
struct BitsOf<1> {
  using Type = uint8_t;
};
template <KvFormat kFormat>
using KvBits = typename BitsOf<kElementBytes<kFormat>>::Type;

// The dimensions of a layer's values. Kernels that know them to be those of keys (not `kUnlike`)
// need no registers for both.
template <bool kUnlike>
GPU_FUNCTION unsigned value_dimensions(const GpuKvLayer& kv) {
  return kUnlike ? kv.value_dimension : kv.key_dimension;
}

template <KvFormat kFormat, bool kUnlike = true>
GPU_FUNCTION KvBlocks kv_blocks(const GpuKvLayer& kv, unsigned head, unsigned page) {
  const size_t elements = static_cast<size_t>(kv.key_dimension) * kSlots;
  size_t key_bytes = elements * kElementBytes<kFormat>;
  if (kFormat == KvFormat::kQ8_0) key_bytes += elements / kKvBlockDimensions * sizeof(uint16_t);
  std::byte* keys = kv.blocks + head * kv.head_stride_bytes + page * kv.page_stride_bytes;
  return {keys, keys + key_bytes, kv.key_dimension, value_dimensions<kUnlike>(kv), kSlots};
}

template <KvFormat kFormat>
GPU_FUNCTION std::byte* key_place(const KvBlocks& blocks, unsigned slot, unsigned dimension) {
  const unsigned index = (dimension / kKeyPiece * blocks.slots + slot) * kKeyPiece;
  return blocks.keys + (index + dimension % kKeyPiece) * kElementBytes<kFormat>;
}

template <KvFormat kFormat>
GPU_FUNCTION std::byte* value_place(const KvBlocks& blocks, unsigned slot, unsigned dimension) {
  const unsigned row = (blocks.value_dimensions + 15) / 16 * 16;
  return blocks.values + ((slot / 2 * row + dimension) * 2 + slot % 2) * kElementBytes<kFormat>;
}

GPU_FUNCTION uint16_t* key_scale(const KvBlocks& blocks, unsigned slot, unsigned dimension) {
  auto* scales = reinterpret_cast<uint16_t*>(blocks.keys + blocks.key_dimensions * blocks.slots);
  return scales + dimension / kKvBlockDimensions * blocks.slots + slot;
}

GPU_FUNCTION uint16_t* value_scale(const KvBlocks& blocks, unsigned slot, unsigned dimension) {
  const unsigned dimensions = blocks.value_dimensions;
  auto* scales = reinterpret_cast<uint16_t*>(blocks.values + dimensions * blocks.slots);
  return scales + slot * (dimensions / kKvBlockDimensions) + dimension / kKvBlockDimensions;
}

// Keys or values, where the same is done to both.
struct KeyPart {
  GPU_FUNCTION static unsigned dimensions(const KvBlocks& blocks) { return blocks.key_dimensions; }
  template <KvFormat kFormat>
  GPU_FUNCTION static std::byte* place(const KvBlocks& blocks, unsigned slot, unsigned dimension) {
    return key_place<kFormat>(blocks, slot, dimension);
  }
  GPU_FUNCTION static uint16_t* scale(const KvBlocks& blocks, unsigned slot, unsigned dimension) {
    return key_scale(blocks, slot, dimension);
  }
};
struct ValuePart {
  GPU_FUNCTION static unsigned dimensions(const KvBlocks& blocks) {
    return blocks.value_dimensions;
  }
  template <KvFormat kFormat>
  GPU_FUNCTION static std::byte* place(const KvBlocks& blocks, unsigned slot, unsigned dimension) {
    return value_place<kFormat>(blocks, slot, dimension);
  }
  GPU_FUNCTION static uint16_t* scale(const KvBlocks& blocks, unsigned slot, unsigned dimension) {
    return value_scale(blocks, slot, dimension);
  }
};

GPU_FUNCTION float byte_of(uint32_t word, unsigned index) {
  return static_cast<float>(static_cast<int8_t>(word >> (8 * index)));
}

// 8 consecutive elements, as floats.
template <KvFormat kFormat>
GPU_FUNCTION void load_elements(const std::byte* place, float (&out)[8]) {
  if constexpr (kFormat == KvFormat::kF32) {
    const Words4 lower = load_16(place);
    const Words4 upper = load_16(place + 16);
    for (unsigned i = 0; i < 4; ++i) out[i] = bits_to_float(lower.words[i]);
    for (unsigned i = 0; i < 4; ++i) out[4 + i] = bits_to_float(upper.words[i]);
  } else if constexpr (kFormat == KvFormat::kQ8_0) {
    const Words2 quants = load_8(place);
    for (unsigned i = 0; i < 8; ++i) out[i] = byte_of(quants.words[i / 4], i % 4);
  } else {
    const Words4 pairs = load_16(place);
    for (unsigned i = 0; i < 8; ++i) {
      const auto bits = static_cast<uint16_t>(pairs.words[i / 2] >> (i % 2 * 16));
      out[i] = kFormat == KvFormat::kF16 ? from_half(bits) : from_bf16(bits);
    }
  }
}

// The key in `slot`, from `dimension` on, a multiple of kKeyPiece.
template <KvFormat kFormat>
GPU_FUNCTION void load_key(const KvBlocks& blocks, unsigned slot, unsigned dimension,
                           float (&out)[8]) {
  load_elements<kFormat>(key_place<kFormat>(blocks, slot, dimension), out);
  if constexpr (kFormat == KvFormat::kQ8_0) {
    const float scale = from_half(*key_scale(blocks, slot, dimension));
    for (unsigned i = 0; i < 8; ++i) out[i] = out[i] * scale;
  }
}

// Loads the values in slots 2 * pair and the next, from `dimension` on, a multiple of kValuePiece:
// out[2 * i] and out[2 * i + 1].
template <KvFormat kFormat>
GPU_FUNCTION void load_values(const KvBlocks& blocks, unsigned pair, unsigned dimension,
                              float (&out)[8]) {
  load_elements<kFormat>(value_place<kFormat>(blocks, 2 * pair, dimension), out);
  if constexpr (kFormat == KvFormat::kQ8_0) {
    const float first = from_half(*value_scale(blocks, 2 * pair, dimension));
    const float second = from_half(*value_scale(blocks, 2 * pair + 1, dimension));
    for (unsigned i = 0; i < 8; ++i) out[i] = out[i] * (i % 2 == 0 ? first : second);
  }
}

template <KvFormat kFormat>
GPU_FUNCTION void store_element(std::byte* place, float value) {
  if constexpr (kFormat == KvFormat::kF32) {
    *reinterpret_cast<float*>(place) = value;
  } else {
    *reinterpret_cast<uint16_t*>(place) =
        kFormat == KvFormat::kF16 ? to_half(value) : to_bf16(value);
  }
}

// 32 lanes bring the 32 elements of a block of kQ8_0: each lane's quant, and the block's scale.
struct KvQuant {
  int8_t quant;
  uint16_t scale;
};
GPU_FUNCTION KvQuant quantize_lanes(float value) {
  float greatest = magnitude(value);
  float check = value * 0.0F;  // 0, or NaN if it is no finite number
  for (unsigned distance = 16; distance > 0; distance /= 2) {
    greatest = greater(greatest, from_lane_across(greatest, distance));
    check = check + from_lane_across(check, distance);
  }
  const uint16_t bits = to_half(lesser(greatest / 127.0F, 65504.0F) + check);
  const float scale = from_half(bits);
  if (!(scale > 0.0F)) return {0, bits};
  const float rounded = nearest_integer(value / scale);
  return {static_cast<int8_t>(greater(lesser(rounded, 127.0F), -127.0F)), bits};
}

}  // namespace
}  // namespace lockstep
