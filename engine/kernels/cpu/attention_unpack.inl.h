// A page's keys and values as tiles read them: as they are stored, or in f32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/attention.h"
#include "engine/kernels/cpu/attention_softmax.inl.h"
#include "engine/kernels/cpu/attention_tiles.inl.h"

namespace lockstep {
namespace {

// The page's rows as they are stored, keys or values.
template <KvFormat kFormat>
inline PageRows stored_rows(const std::byte* block, size_t rows, size_t vectors, float* scales) {
  const size_t count = rows * vectors * 16 / kKvBlockDimensions;
  if constexpr (has_scales(kFormat)) {
    const auto* halves =
        reinterpret_cast<const uint16_t*>(block + quant_bytes(kFormat, rows * vectors * 16));
    for (size_t i = 0; i < count; i += 16) store(scales + i, load_half(halves + i));
  }
  return {block, vectors, 0, scales, vectors * 16 / kKvBlockDimensions};
}

// The place of a page's rows in f32, in strips of so many vectors.
inline PageRows unpacked_rows(size_t rows, size_t strip_vectors, const float* unpacked) {
  return {reinterpret_cast<const std::byte*>(unpacked), strip_vectors, rows * strip_vectors * 16,
          nullptr, 0};
}

// The page's rows to f32, in strips, from load(row, vector).
template <typename Load>
inline PageRows unpack_rows(size_t rows, size_t vectors, size_t strip_vectors, float* unpacked,
                            Load load_row_vector) {
  const PageRows result = unpacked_rows(rows, strip_vectors, unpacked);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t vector = 0; vector < vectors; ++vector) {
      store(unpacked + result.element(row, vector), load_row_vector(row, vector));
    }
  }
  return result;
}

template <KvFormat kFormat>
inline PageRows unpack_keys(const PageRows& keys, size_t head_dimension, size_t strip_vectors,
                            float* unpacked) {
  return unpack_rows(head_dimension, kPageVectors, strip_vectors, unpacked,
                     [&](size_t row, size_t vector) {
                       return load_key<kFormat>(keys, keys.element(row, vector), row, vector);
                     });
}

template <KvFormat kFormat>
inline PageRows unpack_values(const PageRows& values, size_t padded, size_t strip_vectors,
                              float* unpacked) {
  return unpack_rows(kPageTokens, padded / 16, strip_vectors, unpacked,
                     [&](size_t row, size_t vector) {
                       return load_value<kFormat>(values, values.element(row, vector), row, vector);
                     });
}

// Values that are their keys' first dimensions, turned around: the very numbers that keys are.
template <KvFormat kFormat>
inline PageRows unpack_values_in_keys(const std::byte* block, size_t head_dimension,
                                      size_t value_dimension, size_t strip_vectors, float* scales,
                                      float* unpacked) {
  const PageRows keys = stored_rows<kFormat>(block, head_dimension, kPageVectors, scales);
  const PageRows result = unpacked_rows(kPageTokens, strip_vectors, unpacked);
  alignas(64) float square[16][16];
  alignas(64) float turned[16][16];
  for (size_t begin = 0; begin < value_dimension; begin += 16) {
    for (size_t group = 0; group < kPageVectors; ++group) {
      for (size_t i = 0; i < 16; ++i) {
        const size_t dimension = begin + i;
        store(square[i],
              dimension < value_dimension
                  ? load_key<kFormat>(keys, keys.element(dimension, group), dimension, group)
                  : zero());
      }
      for (size_t i = 0; i < 16; ++i) {
        for (size_t j = 0; j < 16; ++j) turned[j][i] = square[i][j];
      }
      for (size_t i = 0; i < 16; ++i) {
        store(unpacked + result.element(group * 16 + i, begin / 16), load(turned[i]));
      }
    }
  }
  return result;
}

}  // namespace
}  // namespace lockstep
