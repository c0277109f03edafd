// Keys and values of a chunk as second operands of a matrix unit: tiles of 16 rows of 16 pairs of
// bf16. A pair is two dimensions of a token's key, or two tokens' values of a dimension.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/attention_block.inl.h"
#include "engine/kernels/cpu/attention_softmax.inl.h"
#include "engine/kernels/cpu/attention_tiles.inl.h"

namespace lockstep {
namespace {

inline constexpr size_t kProductSide = 16;   // rows, tokens or dimensions of a tile
inline constexpr size_t kProductDepth = 32;  // what a product of tiles sums over
inline constexpr size_t kOperandElements = kProductSide * kProductDepth;  // elements of an operand
inline constexpr size_t kProductSums = kProductSide * kProductSide;       // of a product

constexpr size_t depth_steps(size_t count) {
  return (count + kProductDepth - 1) / kProductDepth;
}

// The first of the scales of a page's keys or values, in a block of that many elements.
template <KvFormat kFormat>
inline const uint16_t* block_scales(const std::byte* block, size_t elements) {
  return reinterpret_cast<const uint16_t*>(block + quant_bytes(kFormat, elements));
}

// Stores 16 pairs of elements, `first` and `second` being where they lie in the block.
template <KvFormat kFormat>
[[gnu::always_inline]] inline void store_key_pairs(const std::byte* block, size_t head_dimension,
                                                   size_t dimension, size_t vector, uint16_t* out) {
  auto* to = reinterpret_cast<std::byte*>(out);
  const size_t first = dimension * kPageTokens + vector * 16;
  const size_t second = first + kPageTokens;
  const bool has_second = dimension + 1 < head_dimension;
  if constexpr (kFormat == KvFormat::kBf16) {
    const auto* keys = reinterpret_cast<const uint16_t*>(block);
    if (has_second) return store_stored_pairs(to, keys + first, keys + second);
  }
  F32x16 even = load_key_elements<kFormat>(block, first, dimension, vector);
  F32x16 odd =
      has_second ? load_key_elements<kFormat>(block, second, dimension + 1, vector) : zero();
  if constexpr (has_scales(kFormat)) {
    const uint16_t* scales = block_scales<kFormat>(block, head_dimension * kPageTokens);
    const F32x16 scale =
        load_half(scales + dimension / kKvBlockDimensions * kPageTokens + vector * 16);
    even = mul(even, scale);
    odd = mul(odd, scale);
  }
  store_pairs(to, even, odd);
}

// The page's keys of tokens [begin, end), whole tiles of them, to [tile of tokens][step of 32
// dimensions]. `out` is the page's first tile. Dimensions beyond the last stay as they are: zero.
template <KvFormat kFormat>
inline void pack_keys(const std::byte* block, size_t head_dimension, TokenRange tokens,
                      uint16_t* out) {
  const size_t steps = depth_steps(head_dimension);
  const size_t begin = tokens.begin / kProductSide;
  const size_t end = (tokens.end + kProductSide - 1) / kProductSide;
  for (size_t dimension = 0; dimension < head_dimension; dimension += 2) {
    const size_t step = dimension / kProductDepth;
    const size_t place = dimension % kProductDepth * kProductSide;
    for (size_t vector = begin; vector < end; ++vector) {
      store_key_pairs<kFormat>(block, head_dimension, dimension, vector,
                               out + (vector * steps + step) * kOperandElements + place);
    }
  }
}

// 16 dimensions of a token's value, 0 of tokens outside `tokens`.
template <KvFormat kFormat>
[[gnu::always_inline]] inline F32x16 read_value(const std::byte* block, size_t padded, size_t token,
                                                size_t vector, TokenRange tokens) {
  if (token < tokens.begin || token >= tokens.end) return zero();
  const F32x16 elements = load_value_elements<kFormat>(block, token * padded + vector * 16, vector);
  if constexpr (has_scales(kFormat)) {
    const size_t blocks = padded / kKvBlockDimensions;
    alignas(64) uint16_t scale[16];
    const uint16_t* scales = block_scales<kFormat>(block, padded * kPageTokens);
    for (uint16_t& each : scale) each = scales[token * blocks + vector * 16 / kKvBlockDimensions];
    return mul(elements, load_half(scale));
  } else {
    return elements;
  }
}

// The page's values of tokens [begin, end), and zeros in their place for others of the same step,
// to [step of 32 tokens][tile of dimensions]. `out` is the page's first tile.
template <KvFormat kFormat>
inline void pack_values(const std::byte* block, size_t padded, TokenRange tokens, uint16_t* out) {
  const size_t tiles = padded / kProductSide;
  const size_t begin = tokens.begin / kProductDepth * kProductDepth;
  const size_t end = depth_steps(tokens.end) * kProductDepth;
  for (size_t token = begin; token < end; token += 2) {
    uint16_t* to = out + token / kProductDepth * tiles * kOperandElements +
                   token % kProductDepth * kProductSide;
    const bool whole = token >= tokens.begin && token + 2 <= tokens.end;
    for (size_t tile = 0; tile < tiles; ++tile) {
      auto* pairs = reinterpret_cast<std::byte*>(to + tile * kOperandElements);
      if constexpr (kFormat == KvFormat::kBf16) {
        const auto* values = reinterpret_cast<const uint16_t*>(block) + token * padded + tile * 16;
        if (whole) {
          store_stored_pairs(pairs, values, values + padded);
          continue;
        }
      }
      store_pairs(pairs, read_value<kFormat>(block, padded, token, tile, tokens),
                  read_value<kFormat>(block, padded, token + 1, tile, tokens));
    }
  }
}

// 16 dimensions' values of 32 tokens from `token` on, which are the keys' first `value_dimension`
// dimensions: rows of dimensions, 0 of tokens outside `tokens` and of dimensions beyond the last.
template <KvFormat kFormat>
inline void read_turned_values(const PageRows& keys, size_t value_dimension, size_t dimension,
                               size_t token, TokenRange tokens,
                               uint16_t (&rows)[kProductSide][kProductDepth]) {
  const bool whole = token >= tokens.begin && token + kProductDepth <= tokens.end;
  for (size_t i = 0; i < kProductSide; ++i) {
    const size_t row = dimension + i;
    F32x16 first = zero();
    F32x16 second = zero();
    if (row < value_dimension) {
      const size_t vector = token / 16;
      first = load_key<kFormat>(keys, keys.element(row, vector), row, vector);
      second = load_key<kFormat>(keys, keys.element(row, vector + 1), row, vector + 1);
    }
    if (!whole) {
      first = mask_lanes(first, token, tokens, zero());
      second = mask_lanes(second, token + 16, tokens, zero());
    }
    store_rounded(rows[i], first, second);
  }
}

// As pack_values, of values that are the first `value_dimension` dimensions of the page's keys.
template <KvFormat kFormat>
inline void pack_values_in_keys(const PageRows& keys, size_t value_dimension, TokenRange tokens,
                                uint16_t* out) {
  const size_t tiles = padded_dimension(value_dimension) / kProductSide;
  alignas(64) uint16_t rows[kProductSide][kProductDepth];
  for (size_t step = tokens.begin / kProductDepth; step < depth_steps(tokens.end); ++step) {
    for (size_t tile = 0; tile < tiles; ++tile) {
      read_turned_values<kFormat>(keys, value_dimension, tile * kProductSide, step * kProductDepth,
                                  tokens, rows);
      turn_pairs(rows, out + (step * tiles + tile) * kOperandElements);
    }
  }
}

}  // namespace
}  // namespace lockstep
