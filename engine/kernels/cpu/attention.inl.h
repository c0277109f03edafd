// Attention over pages of keys and values; see AttentionArguments in kernel_table.h. Written over
// the small vector type: a lane owns a token while scores are computed, and a dimension while
// values are added, so that nothing depends on which queries share the loads of a key or a value.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/exponential.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// Queries whose sums are in registers at once.
inline constexpr size_t kTileQueries = 4;
// Queries that walk over the pages together: a page's keys and values are then still in the cache
// for the second and later tiles, and their outputs take at most 32 KiB of stack.
inline constexpr size_t kWalkQueries = 16;
inline constexpr size_t kPageVectors = kPageTokens / 16;

// Vectors beside each other in a tile of `queries` queries; divides kPageVectors.
constexpr size_t tile_vectors(size_t queries) {
  const size_t most = kAccumulators / queries;
  return most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

constexpr size_t value_row_elements(size_t head_dimension) {
  return (head_dimension + 15) / 16 * 16;
}

// The running softmax of a few queries; output rows are `padded` floats.
struct AttentionWalk {
  float maximum[kWalkQueries];
  float sum[kWalkQueries];
  alignas(64) float output[kWalkQueries * kMaxHeadDimension];
};

// What a page gives to the queries of a tile: first scores, then probabilities (relative to the
// running maximum), and what their earlier outputs and sums are multiplied by.
struct PageTile {
  alignas(64) float scores[kTileQueries][kPageTokens];
  alignas(64) float factors[16];
};

template <KvFormat kFormat>
inline F32x16 load_elements(const std::byte* block, size_t index) {
  if constexpr (kFormat == KvFormat::kF32) {
    return load(reinterpret_cast<const float*>(block) + index);
  } else if constexpr (kFormat == KvFormat::kF16) {
    return load_half(reinterpret_cast<const uint16_t*>(block) + index);
  } else {
    return load_bf16(reinterpret_cast<const uint16_t*>(block) + index);
  }
}

// Scores of the page's tokens [token, token + 16 kVectors).
template <KvFormat kFormat, size_t kQueries, size_t kVectors>
inline void score_tokens(const AttentionArguments& arguments, const std::byte* keys,
                         const float* queries, size_t token, PageTile& tile) {
  F32x16 sums[kQueries][kVectors];
  for (size_t query = 0; query < kQueries; ++query) {
    for (size_t vector = 0; vector < kVectors; ++vector) sums[query][vector] = zero();
  }
  for (size_t dimension = 0; dimension < arguments.head_dimension; ++dimension) {
    F32x16 key[kVectors];
    for (size_t vector = 0; vector < kVectors; ++vector) {
      key[vector] = load_elements<kFormat>(keys, dimension * kPageTokens + token + vector * 16);
    }
    for (size_t query = 0; query < kQueries; ++query) {
      const F32x16 factor = broadcast(queries[query * arguments.query_stride + dimension]);
      for (size_t vector = 0; vector < kVectors; ++vector) {
        sums[query][vector] = fma(factor, key[vector], sums[query][vector]);
      }
    }
  }
  const F32x16 scale = broadcast(arguments.scale);
  for (size_t query = 0; query < kQueries; ++query) {
    for (size_t vector = 0; vector < kVectors; ++vector) {
      store(&tile.scores[query][token + vector * 16], mul(sums[query][vector], scale));
    }
  }
}

// The greatest score of the page's first `count` tokens; the scores of others become -infinity,
// whatever they are.
inline float greatest_score(size_t count, float* scores) {
  alignas(64) static constexpr float kIndex[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                   8, 9, 10, 11, 12, 13, 14, 15};
  const F32x16 minus_infinity = broadcast(-__builtin_inff());
  F32x16 parts[kPageVectors];
  for (size_t vector = 0; vector < kPageVectors; ++vector) {
    parts[vector] = minus_infinity;
    if (vector * 16 >= count) continue;
    const F32x16 left = broadcast(static_cast<float>(count - vector * 16));
    parts[vector] = select_less(load(kIndex), left, load(scores + vector * 16), minus_infinity);
    store(scores + vector * 16, parts[vector]);
  }
  return max_lanes(max(max(parts[0], parts[1]), max(parts[2], parts[3])));
}

// Turns the scores of the page's first `count` tokens into probabilities relative to `maximum`;
// returns their sum.
inline float take_probabilities(size_t count, float maximum, float* scores) {
  const F32x16 offset = broadcast(maximum);
  F32x16 parts[kPageVectors];
  for (size_t vector = 0; vector < kPageVectors; ++vector) {
    parts[vector] = zero();
    if (vector * 16 >= count) continue;
    parts[vector] = exponential(sub(load(scores + vector * 16), offset));
    store(scores + vector * 16, parts[vector]);
  }
  return sum_lanes(add(add(parts[0], parts[1]), add(parts[2], parts[3])));
}

// Takes the tile's scores of the page's first `count` tokens into the running softmax. A query
// whose maximum stays gets the factor e^0, which is exactly 1.
template <size_t kQueries>
inline void take_scores(size_t count, PageTile& tile, float* maximum, float* sum) {
  store(tile.factors, zero());
  for (size_t query = 0; query < kQueries; ++query) {
    const float greatest = greatest_score(count, tile.scores[query]);
    const float previous = maximum[query];
    maximum[query] = previous > greatest ? previous : greatest;
    tile.factors[query] = previous - maximum[query];
  }
  store(tile.factors, exponential(load(tile.factors)));
  for (size_t query = 0; query < kQueries; ++query) {
    const float page_sum = take_probabilities(count, maximum[query], tile.scores[query]);
    sum[query] = sum[query] * tile.factors[query] + page_sum;
  }
}

// output = output * factor + sum of probability * value over the page's first `count` tokens, for
// dimensions [dimension, dimension + 16 kVectors).
template <KvFormat kFormat, size_t kQueries, size_t kVectors>
inline void add_values(const std::byte* values, size_t padded, size_t dimension, size_t count,
                       const PageTile& tile, float* output) {
  F32x16 sums[kQueries][kVectors];
  for (size_t query = 0; query < kQueries; ++query) {
    const F32x16 factor = broadcast(tile.factors[query]);
    for (size_t vector = 0; vector < kVectors; ++vector) {
      sums[query][vector] = mul(load(output + query * padded + dimension + vector * 16), factor);
    }
  }
  for (size_t token = 0; token < count; ++token) {
    F32x16 value[kVectors];
    for (size_t vector = 0; vector < kVectors; ++vector) {
      value[vector] = load_elements<kFormat>(values, token * padded + dimension + vector * 16);
    }
    for (size_t query = 0; query < kQueries; ++query) {
      const F32x16 probability = broadcast(tile.scores[query][token]);
      for (size_t vector = 0; vector < kVectors; ++vector) {
        sums[query][vector] = fma(probability, value[vector], sums[query][vector]);
      }
    }
  }
  for (size_t query = 0; query < kQueries; ++query) {
    for (size_t vector = 0; vector < kVectors; ++vector) {
      store(output + query * padded + dimension + vector * 16, sums[query][vector]);
    }
  }
}

// Where one page's blocks are and how many of its tokens are seen.
struct PageView {
  const std::byte* keys;
  const std::byte* values;
  size_t count;
};

// One page for kQueries queries of the walk, from `first` on.
template <KvFormat kFormat, size_t kQueries>
inline void take_page(const AttentionArguments& arguments, const PageView& page,
                      const float* queries, size_t first, AttentionWalk& walk) {
  constexpr size_t kVectors = tile_vectors(kQueries);
  const size_t padded = value_row_elements(arguments.head_dimension);
  PageTile tile;
  for (size_t token = 0; token < page.count; token += kVectors * 16) {
    score_tokens<kFormat, kQueries, kVectors>(
        arguments, page.keys, queries + first * arguments.query_stride, token, tile);
  }
  take_scores<kQueries>(page.count, tile, walk.maximum + first, walk.sum + first);
  float* output = walk.output + first * padded;
  size_t dimension = 0;
  for (; dimension + kVectors * 16 <= padded; dimension += kVectors * 16) {
    add_values<kFormat, kQueries, kVectors>(page.values, padded, dimension, page.count, tile,
                                            output);
  }
  for (; dimension < padded; dimension += 16) {
    add_values<kFormat, kQueries, 1>(page.values, padded, dimension, page.count, tile, output);
  }
}

// Every page for `query_count` (at most kWalkQueries) queries.
template <KvFormat kFormat>
inline void walk_pages(const AttentionArguments& arguments, size_t context, const float* queries,
                       size_t query_count, AttentionWalk& walk) {
  for (size_t begin = 0; begin < context; begin += kPageTokens) {
    const size_t left = context - begin;
    const size_t offset = arguments.pages[begin / kPageTokens] * arguments.page_stride_bytes;
    const PageView page = {arguments.keys + offset, arguments.values + offset,
                           left < kPageTokens ? left : kPageTokens};
    size_t first = 0;
    for (; first + kTileQueries <= query_count; first += kTileQueries) {
      take_page<kFormat, kTileQueries>(arguments, page, queries, first, walk);
    }
    const size_t rest = query_count - first;
    if (rest == 1) take_page<kFormat, 1>(arguments, page, queries, first, walk);
    if (rest == 2) take_page<kFormat, 2>(arguments, page, queries, first, walk);
    if (rest == 3) take_page<kFormat, 3>(arguments, page, queries, first, walk);
  }
}

inline void write_output(const AttentionWalk& walk, size_t query, size_t dimensions,
                         float* output) {
  const float* sums = walk.output + query * value_row_elements(dimensions);
  const F32x16 sum = broadcast(walk.sum[query]);
  for (size_t begin = 0; begin < dimensions; begin += 16) {
    const size_t left = dimensions - begin;
    store_first(output + begin, div(load(sums + begin), sum), left < 16 ? left : 16);
  }
}

template <KvFormat kFormat>
inline void attend_token(const AttentionArguments& arguments, size_t token) {
  const size_t padded = value_row_elements(arguments.head_dimension);
  AttentionWalk walk;
  for (size_t begin = 0; begin < arguments.query_count; begin += kWalkQueries) {
    const size_t left = arguments.query_count - begin;
    const size_t count = left < kWalkQueries ? left : kWalkQueries;
    for (size_t query = 0; query < count; ++query) {
      walk.maximum[query] = -__builtin_inff();
      walk.sum[query] = 0.0F;
    }
    for (size_t i = 0; i < count * padded; i += 16) store(walk.output + i, zero());
    walk_pages<kFormat>(
        arguments, arguments.position + token + 1,
        arguments.queries + token * arguments.query_token_stride + begin * arguments.query_stride,
        count, walk);
    for (size_t query = 0; query < count; ++query) {
      write_output(walk, query, arguments.head_dimension,
                   arguments.output + token * arguments.output_token_stride +
                       (begin + query) * arguments.output_stride);
    }
  }
}

template <KvFormat kFormat>
inline void attend_in_format(const AttentionArguments& arguments) {
  for (size_t token = 0; token < arguments.token_count; ++token) {
    attend_token<kFormat>(arguments, token);
  }
}

inline void attend(const AttentionArguments& arguments) {
  switch (arguments.format) {
    case KvFormat::kF32:
      return attend_in_format<KvFormat::kF32>(arguments);
    case KvFormat::kF16:
      return attend_in_format<KvFormat::kF16>(arguments);
    case KvFormat::kBf16:
      return attend_in_format<KvFormat::kBf16>(arguments);
  }
}

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
  Element* value_row = values + slot * value_row_elements(head_dimension);
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
