// The two products of attention, in tiles: some rows (a row is one query of one token) by some
// vectors, whose sums stay in registers. A lane owns a token while scores are computed and a
// dimension while values are added, so that nothing depends on which rows share a tile. Written
// over the small vector type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/attention.h"

namespace lockstep {
namespace {

// The most vectors beside each other in a tile of this many rows: 4, 2 or 1.
constexpr size_t tile_vectors(size_t rows) {
  const size_t most = kAttentionTileSums / rows;
  return most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

constexpr size_t padded_dimension(size_t head_dimension) {
  return (head_dimension + 15) / 16 * 16;
}

// The keys or values of a page in rows of vectors: a row is a dimension of the keys, or a token of
// the values. Rows are cut into strips of a few vectors, [strip][row][vectors of the strip].
struct PageRows {
  const std::byte* elements;
  size_t strip_vectors;
  size_t strip_elements;
  // Scales, of the formats that have them, in the order in which they are stored; for values, how
  // many a token has.
  const float* scales;
  size_t token_scales;

  size_t stride() const { return strip_vectors * 16; }
  size_t element(size_t row, size_t vector) const {
    return vector / strip_vectors * strip_elements + row * stride() + vector % strip_vectors * 16;
  }
};

// Fetches what will be read next while a tile is computed: two lines at `at`, which moves on by
// `step` bytes with every step of the tile. Into the second cache: it waits for more lines at once
// than the first, and one sequence's keys and values then come as fast as memory gives them.
struct Ahead {
  const std::byte* at;
  size_t step;

  void fetch() {
    __builtin_prefetch(at, 0, 2);
    __builtin_prefetch(at + 64, 0, 2);
    at += step;
  }
};

constexpr bool has_scales(KvFormat format) {
  return format == KvFormat::kQ8_0 || format == KvFormat::kQ4_0;
}

// The bytes of so many elements in front of their scales.
constexpr size_t quant_bytes(KvFormat format, size_t elements) {
  return format == KvFormat::kQ4_0 ? elements / 2 : elements;
}

// Calls function<kFormat>() for the form in which elements of `format` are stored.
template <typename Function>
inline void with_stored_form(KvFormat format, Function function) {
  switch (format) {
    case KvFormat::kF32:
      return function.template operator()<KvFormat::kF32>();
    case KvFormat::kF16:
      return function.template operator()<KvFormat::kF16>();
    case KvFormat::kBf16:
      return function.template operator()<KvFormat::kBf16>();
    case KvFormat::kQ8_0:
      return function.template operator()<KvFormat::kQ8_0>();
    case KvFormat::kQ4_0:
    case KvFormat::kQ4H:
      return function.template operator()<KvFormat::kQ4_0>();
  }
}

// Elements with a place of their own: not of kQ4_0.
template <KvFormat kFormat>
inline F32x16 load_elements(const std::byte* block, size_t index) {
  if constexpr (kFormat == KvFormat::kF32) {
    return load(reinterpret_cast<const float*>(block) + index);
  } else if constexpr (kFormat == KvFormat::kF16) {
    return load_half(reinterpret_cast<const uint16_t*>(block) + index);
  } else if constexpr (kFormat == KvFormat::kBf16) {
    return load_bf16(reinterpret_cast<const uint16_t*>(block) + index);
  } else {
    return load_int8(block + index);
  }
}

// Vector `vector` of a stored key's dimension, without its scale; `index` is its first element's.
template <KvFormat kFormat>
inline F32x16 load_key_elements(const std::byte* block, size_t index, size_t dimension,
                                size_t vector) {
  if constexpr (kFormat == KvFormat::kQ4_0) {
    const size_t row = dimension / kKvBlockDimensions * 16 + dimension % 16;
    return load_nibbles(block + row * kPageTokens + vector * 16, dimension / 16 % 2);
  } else {
    return load_elements<kFormat>(block, index);
  }
}

// Vector `vector` of a stored value, likewise.
template <KvFormat kFormat>
inline F32x16 load_value_elements(const std::byte* block, size_t index, size_t vector) {
  if constexpr (kFormat == KvFormat::kQ4_0) {
    return load_nibbles(block + (index - vector % 2 * 16) / 2, vector % 2);
  } else {
    return load_elements<kFormat>(block, index);
  }
}

// Element `index` of the keys and the 15 after it: vector `vector` of `dimension`.
template <KvFormat kFormat>
inline F32x16 load_key(const PageRows& keys, size_t index, size_t dimension, size_t vector) {
  const F32x16 elements = load_key_elements<kFormat>(keys.elements, index, dimension, vector);
  if constexpr (has_scales(kFormat)) {
    const size_t scale = dimension / kKvBlockDimensions * kPageTokens + vector * 16;
    return mul(elements, load(keys.scales + scale));
  } else {
    return elements;
  }
}

// Element `index` of the values and the 15 after it: vector `vector` of `token`.
template <KvFormat kFormat>
inline F32x16 load_value(const PageRows& values, size_t index, size_t token, size_t vector) {
  const F32x16 elements = load_value_elements<kFormat>(values.elements, index, vector);
  if constexpr (has_scales(kFormat)) {
    const size_t scale = token * values.token_scales + vector * 16 / kKvBlockDimensions;
    return mul(elements, broadcast(values.scales[scale]));
  } else {
    return elements;
  }
}

// Scores of kRows rows with 16 kVectors tokens, from the page's vector `vector` on. Queries are
// [dimension][kAttentionTileRows], scores [row][kAttentionChunkTokens].
template <KvFormat kFormat, size_t kRows, size_t kVectors>
inline void score_tile(const PageRows& keys, size_t vector, size_t head_dimension,
                       const float* queries, float scale, float* scores, Ahead ahead) {
  size_t first = keys.element(0, vector);
  const size_t stride = keys.stride();
  F32x16 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = zero();
  }
  for (size_t dimension = 0; dimension < head_dimension; ++dimension) {
    ahead.fetch();
    F32x16 key[kVectors];
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v) {
      key[v] = load_key<kFormat>(keys, first + v * 16, dimension, vector + v);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const F32x16 query = broadcast(queries[r]);
#pragma GCC unroll 8
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = fma(query, key[v], sums[r][v]);
      }
    }
    first += stride;
    queries += kAttentionTileRows;
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v) {
      store(scores + r * kAttentionChunkTokens + v * 16, mul(sums[r][v], broadcast(scale)));
    }
  }
}

// output += probability * value for kRows rows and 16 kVectors dimensions, from vector `vector` on,
// over `count` tokens of the page from `token` on. Probabilities are [row][kAttentionChunkTokens],
// from `token` on; output rows are output_stride floats apart.
template <KvFormat kFormat, size_t kRows, size_t kVectors>
inline void value_tile(const PageRows& values, size_t vector, size_t token, size_t count,
                       const float* probabilities, float* output, size_t output_stride,
                       Ahead ahead) {
  size_t first = values.element(token, vector);
  const size_t stride = values.stride();
  F32x16 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = load(output + r * output_stride + v * 16);
    }
  }
  for (size_t i = 0; i < count; ++i) {
    ahead.fetch();
    F32x16 value[kVectors];
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v) {
      value[v] = load_value<kFormat>(values, first + v * 16, token + i, vector + v);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const F32x16 probability = broadcast(probabilities[r * kAttentionChunkTokens + i]);
#pragma GCC unroll 8
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = fma(probability, value[v], sums[r][v]);
      }
    }
    first += stride;
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v) {
      store(output + r * output_stride + v * 16, sums[r][v]);
    }
  }
}

}  // namespace
}  // namespace lockstep
