// One chunk of keys and values for a block of rows. A block of few rows reads a page's elements as
// they are stored; for more a page is unpacked to f32 once, in strips as wide as a tile. Both give
// the same bits. While a page is computed, the one after it is fetched.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/attention.h"
#include "engine/kernels/cpu/attention_block.inl.h"
#include "engine/kernels/cpu/attention_softmax.inl.h"
#include "engine/kernels/cpu/attention_tiles.inl.h"
#include "engine/kernels/cpu/attention_unpack.inl.h"

namespace lockstep {
namespace {

// Calls function<kRows>() for a number of rows from 1 to kMost.
template <size_t kMost, typename Function>
inline void for_rows(size_t rows, Function function) {
  if (rows == kMost) return function.template operator()<kMost>();
  if constexpr (kMost > 1) for_rows<kMost - 1>(rows, function);
}

// Calls function<kVectors>(first vector) for the vectors [begin, end), in tiles as wide as they can
// be.
template <size_t kMost, typename Function>
inline void for_vectors(size_t begin, size_t end, Function function) {
  for (; begin + kMost <= end; begin += kMost) function.template operator()<kMost>(begin);
  if constexpr (kMost > 1) for_vectors<kMost / 2>(begin, end, function);
}

// The block that is read after the one at hand, fetched in parts while tiles are computed.
struct NextBlock {
  const std::byte* block;
  size_t size_bytes;

  Ahead part(size_t index, size_t count, size_t steps) const {
    const size_t bytes = size_bytes / count;
    return {block + index * bytes, bytes / steps};
  }
};

// The pages of a chunk from the first to the last that is seen.
struct ChunkPages {
  size_t first_token;  // of the first page, in the chunk
  size_t count;
  // In the order in which they are read: keys, values, and what comes after them.
  const std::byte* blocks[2 * kAttentionChunkTokens / kPageTokens + 1];
};

inline ChunkPages find_pages(const AttentionArguments& arguments, size_t chunk, TokenRange seen,
                             bool has_next) {
  const size_t first = seen.begin / kPageTokens;
  ChunkPages result;
  result.first_token = first * kPageTokens;
  result.count = (seen.end + kPageTokens - 1) / kPageTokens - first;
  const uint32_t* pages = arguments.pages + chunk * (kAttentionChunkTokens / kPageTokens) + first;
  for (size_t page = 0; page < result.count; ++page) {
    const size_t offset = pages[page] * arguments.page_stride_bytes;
    result.blocks[page] = arguments.keys + offset;
    result.blocks[result.count + page] =
        (arguments.values == nullptr ? arguments.keys : arguments.values) + offset;
  }
  const size_t next = pages[has_next ? result.count : 0] * arguments.page_stride_bytes;
  result.blocks[2 * result.count] = arguments.keys + next;
  return result;
}

// Scores of the block's rows with a page whose first token is `first` of the chunk. Tiles are at
// most kWidest vectors wide.
template <KvFormat kFormat, size_t kWidest>
inline void score_page(const AttentionArguments& arguments, const RowBlock& block, size_t first,
                       const PageRows& keys, const NextBlock& next, float* scores) {
  const size_t dimensions = arguments.head_dimension;
  for (size_t tile = 0; tile < block.tile_count; ++tile) {
    const TokenRange seen = common(block.tiles[tile].any, {first, first + kPageTokens});
    if (empty(seen)) continue;
    const RowRange rows = tile_row_range(block, tile);
    const float* queries = block.queries + tile * dimensions * kAttentionTileRows;
    for_rows<kAttentionTileRows>(rows.end - rows.begin, [&]<size_t kRows>() {
      constexpr size_t kMost = tile_vectors(kRows) < kWidest ? tile_vectors(kRows) : kWidest;
      constexpr size_t kParts = kPageVectors / kMost;
      const size_t begin = (seen.begin - first) / (kMost * 16) * kMost;
      for_vectors<kMost>(begin, (seen.end - first + 15) / 16, [&]<size_t kVectors>(size_t vector) {
        score_tile<kFormat, kRows, kVectors>(
            keys, vector, dimensions, queries, arguments.scale,
            scores + rows.begin * kAttentionChunkTokens + first + vector * 16,
            next.part(tile * kParts + vector / kMost, block.tile_count * kParts, dimensions));
      });
    });
  }
}

// Adds the values of a page, as score_page. Tokens that not all rows of a tile see are added row by
// row.
template <KvFormat kFormat, size_t kWidest>
inline void add_page(const RowBlock& block, size_t first, const PageRows& values, size_t padded,
                     const NextBlock& next, const float* probabilities, float* output) {
  const TokenRange page = {first, first + kPageTokens};
  for (size_t tile = 0; tile < block.tile_count; ++tile) {
    if (empty(common(block.tiles[tile].any, page))) continue;
    const RowRange rows = tile_row_range(block, tile);
    const auto add = [&]<size_t kRows>(size_t row, TokenRange range) {
      if (empty(range)) return;
      constexpr size_t kMost = tile_vectors(kRows) < kWidest ? tile_vectors(kRows) : kWidest;
      const size_t parts = (padded / 16 + kMost - 1) / kMost;
      for_vectors<kMost>(0, padded / 16, [&]<size_t kVectors>(size_t vector) {
        value_tile<kFormat, kRows, kVectors>(
            values, vector, range.begin - first, range.end - range.begin,
            probabilities + row * kAttentionChunkTokens + range.begin,
            output + row * padded + vector * 16, padded,
            next.part(tile * parts + vector / kMost, block.tile_count * parts, kPageTokens));
      });
    };
    const TokenRange shared = common(block.tiles[tile].all, page);
    for (size_t row = rows.begin; row < rows.end; ++row) {
      const TokenRange seen = common(block.views[row], page);
      add.template operator()<1>(row, {seen.begin, empty(shared) ? seen.end : shared.begin});
    }
    if (empty(shared)) continue;
    for_rows<kAttentionTileRows>(rows.end - rows.begin, [&]<size_t kRows>() {
      add.template operator()<kRows>(rows.begin, shared);
    });
    for (size_t row = rows.begin; row < rows.end; ++row) {
      add.template operator()<1>(row, {shared.end, common(block.views[row], page).end});
    }
  }
}

// Whether pages are unpacked for so many rows. For two tiles it costs as much as it saves.
template <KvFormat kFormat>
inline bool unpacks(const RowBlock& block) {
  return kFormat != KvFormat::kF32 && block.tile_count > 2;
}

template <KvFormat kFormat>
inline void score_pages(const AttentionArguments& arguments, const ChunkPages& pages,
                        const RowBlock& block, ChunkScratch& scratch) {
  const size_t dimensions = arguments.head_dimension;
  const size_t size_bytes = key_block_bytes(kFormat, dimensions);
  for (size_t page = 0; page < pages.count; ++page) {
    const size_t first = pages.first_token + page * kPageTokens;
    const PageRows keys =
        stored_rows<kFormat>(pages.blocks[page], dimensions, kPageVectors, scratch.scales);
    const NextBlock next = {pages.blocks[page + 1], size_bytes};
    if (unpacks<kFormat>(block)) {
      score_page<KvFormat::kF32, kStripVectors>(
          arguments, block, first,
          unpack_keys<kFormat>(keys, dimensions, kStripVectors, scratch.unpacked), next,
          scratch.scores);
    } else {
      score_page<kFormat, 4>(arguments, block, first, keys, next, scratch.scores);
    }
  }
}

template <KvFormat kFormat>
inline void add_pages(const AttentionArguments& arguments, const ChunkPages& pages,
                      const RowBlock& block, ChunkScratch& scratch, float* output) {
  const size_t padded = padded_dimension(arguments.value_dimension);
  const bool in_keys = arguments.values == nullptr;
  const size_t size_bytes = in_keys ? key_block_bytes(kFormat, arguments.head_dimension)
                                    : value_block_bytes(kFormat, arguments.value_dimension);
  for (size_t page = 0; page < pages.count; ++page) {
    const size_t first = pages.first_token + page * kPageTokens;
    const std::byte* stored = pages.blocks[pages.count + page];
    const NextBlock next = {pages.blocks[pages.count + page + 1], size_bytes};
    const auto add_unpacked = [&](const PageRows& values) {
      add_page<KvFormat::kF32, kStripVectors>(block, first, values, padded, next, scratch.scores,
                                              output);
    };
    if (in_keys) {
      add_unpacked(unpack_values_in_keys<kFormat>(stored, arguments.head_dimension,
                                                  arguments.value_dimension, kStripVectors,
                                                  scratch.scales, scratch.unpacked));
      continue;
    }
    const PageRows values = stored_rows<kFormat>(stored, kPageTokens, padded / 16, scratch.scales);
    if (unpacks<kFormat>(block)) {
      add_unpacked(unpack_values<kFormat>(values, padded, kStripVectors, scratch.unpacked));
    } else {
      add_page<kFormat, 4>(block, first, values, padded, next, scratch.scores, output);
    }
  }
}

// One chunk, of which at least one row sees something, for all rows of the block; with `has_next`
// they see the next one too. Rows that see nothing of it get a maximum of -FLT_MAX and a sum and an
// output of 0.
inline void take_chunk(const AttentionArguments& arguments, size_t chunk, bool has_next,
                       RowBlock& block, ChunkScratch& scratch, const ChunkResult& result) {
  view_chunk(chunk, block);
  // Windows of consecutive tokens leave no gap.
  const TokenRange seen = {block.views[block.seeing.begin].begin,
                           block.views[block.seeing.end - 1].end};
  const ChunkPages pages = find_pages(arguments, chunk, seen, has_next);
  with_stored_form(arguments.format.keys, [&]<KvFormat kFormat>() {
    score_pages<kFormat>(arguments, pages, block, scratch);
  });
  const bool changes = changes_scores(arguments);
  for (size_t row = 0; row < block.count; ++row) {
    float* scores = scratch.scores + row * kAttentionChunkTokens;
    if (changes) {
      const size_t place = block.first + row;
      change_scores(arguments, place / arguments.query_count, place % arguments.query_count,
                    chunk * kAttentionChunkTokens, block.views[row], 1.0F, scores);
    }
    result.maximums[row] = greatest_score(block.views[row], scores);
    result.sums[row] = take_probabilities(block.views[row], result.maximums[row], scores);
  }
  set_zero(block.count * padded_dimension(arguments.value_dimension), result.output);
  with_stored_form(stored_value_format(arguments), [&]<KvFormat kFormat>() {
    add_pages<kFormat>(arguments, pages, block, scratch, result.output);
  });
}

}  // namespace
}  // namespace lockstep
