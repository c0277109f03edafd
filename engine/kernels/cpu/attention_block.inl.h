// The rows that attention is computed for together, and what each of them sees of a chunk of keys;
// a row is one query of one token.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/attention.h"
#include "engine/kernels/cpu/attention_softmax.inl.h"
#include "engine/kernels/cpu/attention_tiles.inl.h"

namespace lockstep {
namespace {

inline constexpr size_t kBlockTiles = 16;
inline constexpr size_t kBlockRows = (kBlockTiles * kAttentionTileRows + 15) / 16 * 16;
// Outputs and queries of a block: with more dimensions than 288 it has fewer rows, but enough of
// them for what it takes to unpack a page.
inline constexpr size_t kBlockFloats = kBlockTiles / 2 * kAttentionTileRows * kMaxHeadDimension;
inline constexpr size_t kStripVectors = tile_vectors(kAttentionTileRows);

struct RowRange {
  size_t begin;
  size_t end;
};

// The tokens of a chunk that a tile's rows see: those that any of them sees, and those that all
// see.
struct TileView {
  TokenRange any;
  TokenRange all;
};

struct RowBlock {
  size_t first;  // of the rows [token][query] of the arguments
  size_t count;  // at most kBlockRows
  size_t tile_count;
  size_t tile_rows;             // of every tile, but the last may have fewer
  TokenRange keys[kBlockRows];  // that each row sees, by position
  // The tokens of the chunk at hand that each row sees, and the rows that see any.
  TokenRange views[kBlockRows];
  RowRange seeing;
  TileView tiles[kBlockTiles];
  alignas(64) float queries[kBlockFloats];  // [tile][dimension][kAttentionTileRows]
};

// The results of a chunk: per row the maximum, the sum and `padded_dimension` floats of output.
struct ChunkResult {
  float* maximums;
  float* sums;
  float* output;
};

// The memory for scores and then probabilities of a chunk, and for a page's unpacked elements and
// scales.
struct ChunkScratch {
  alignas(64) float scores[kBlockRows * kAttentionChunkTokens];
  alignas(64) float unpacked[kPageTokens * kMaxHeadDimension];
  alignas(64) float scales[kPageTokens * kMaxHeadDimension / kKvBlockDimensions];
};

inline size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}
inline size_t greater(size_t a, size_t b) {
  return a > b ? a : b;
}
inline TokenRange common(TokenRange a, TokenRange b) {
  return {greater(a.begin, b.begin), smaller(a.end, b.end)};
}
inline bool empty(TokenRange range) {
  return range.end <= range.begin;
}

inline void set_zero(size_t count, float* values) {
  for (size_t i = 0; i < count; i += 16) store(values + i, zero());
}

inline size_t block_rows(size_t padded) {
  const size_t tiles = kBlockFloats / padded / kAttentionTileRows;
  return smaller(tiles, kBlockTiles) * kAttentionTileRows;
}

inline KvFormat stored_value_format(const AttentionArguments& arguments) {
  return arguments.values == nullptr ? arguments.format.keys : arguments.format.values;
}

// The keys that token `token` of the arguments sees, by position.
inline TokenRange seen_keys(const AttentionArguments& arguments, size_t token) {
  const size_t position = arguments.position + token;
  const size_t first = first_seen_key(position, arguments.window, arguments.section);
  if (arguments.ahead == 0) return {first, position + 1};
  return {first, position + 1 + smaller(arguments.ahead, arguments.length - position - 1)};
}

// The rows of the arguments from `first` on, as many as a block takes.
inline void begin_block(const AttentionArguments& arguments, size_t first, RowBlock& block) {
  const size_t left = arguments.token_count * arguments.query_count - first;
  const size_t dimensions = arguments.head_dimension;
  block.first = first;
  const size_t widest = greater(dimensions, arguments.value_dimension);
  block.count = smaller(left, block_rows(padded_dimension(widest)));
  const size_t fewest = (block.count + kAttentionTileRows - 1) / kAttentionTileRows;
  block.tile_rows = (block.count + fewest - 1) / fewest;
  block.tile_count = (block.count + block.tile_rows - 1) / block.tile_rows;
  for (size_t row = 0; row < block.count; ++row) {
    const size_t token = (first + row) / arguments.query_count;
    const size_t query = (first + row) % arguments.query_count;
    const float* from =
        arguments.queries + token * arguments.query_token_stride + query * arguments.query_stride;
    float* to = block.queries + row / block.tile_rows * dimensions * kAttentionTileRows +
                row % block.tile_rows;
    for (size_t i = 0; i < dimensions; ++i) to[i * kAttentionTileRows] = from[i];
    block.keys[row] = seen_keys(arguments, token);
  }
}

inline RowRange tile_row_range(const RowBlock& block, size_t tile) {
  const size_t begin = tile * block.tile_rows;
  return {begin, smaller(begin + block.tile_rows, block.count)};
}

// Looks at another chunk, of which at least one row sees something.
inline void view_chunk(size_t chunk, RowBlock& block) {
  const size_t first = chunk * kAttentionChunkTokens;
  constexpr TokenRange whole_chunk = {0, kAttentionChunkTokens};
  block.seeing = {block.count, 0};
  for (size_t row = 0; row < block.count; ++row) {
    const TokenRange keys = block.keys[row];
    const TokenRange view = {greater(keys.begin, first) - first,
                             keys.end - smaller(keys.end, first)};
    block.views[row] = common(view, whole_chunk);
    if (empty(block.views[row])) {
      block.views[row] = {0, 0};
      continue;
    }
    block.seeing = {smaller(block.seeing.begin, row), row + 1};
  }
  for (size_t tile = 0; tile < block.tile_count; ++tile) {
    const RowRange rows = tile_row_range(block, tile);
    TokenRange any = {0, 0};
    TokenRange all = whole_chunk;
    for (size_t row = rows.begin; row < rows.end; ++row) {
      const TokenRange view = block.views[row];
      all = common(all, view);
      if (empty(view)) continue;
      if (empty(any)) any = view;
      any = {smaller(any.begin, view.begin), greater(any.end, view.end)};
    }
    block.tiles[tile] = {any, all};
  }
}

}  // namespace
}  // namespace lockstep
