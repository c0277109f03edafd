// Attention in bf16 through a matrix unit; see attention.h. A row is one query of one token.
//
// The keys and values of a chunk are packed once for a block of rows, which stay in the second
// cache. Groups of 32 rows, two tiles, then take the chunk: scores, softmax and values, while
// nothing but the group's scores has to stay in the first.
#pragma once

#include <cfloat>
#include <cstddef>
#include <cstdint>

#include "engine/kernels/attention.h"
#include "engine/kernels/cpu/attention_block.inl.h"
#include "engine/kernels/cpu/attention_softmax.inl.h"
#include "engine/kernels/cpu/attention_unit_pack.inl.h"
#include "engine/kernels/cpu/attention_unpack.inl.h"
#include "engine/kernels/cpu/denormals.h"
#include "engine/kernels/cpu/exponential.inl.h"

namespace lockstep {
namespace {

inline constexpr size_t kUnitBlockElements = kBf16AttentionElements;
inline constexpr size_t kUnitGroupRows = 2 * kProductSide;
// A line more than a chunk, so that the rows of a tile lie in different sets of the cache.
inline constexpr size_t kUnitScoreStride = kAttentionChunkTokens + 16;
inline constexpr size_t kOperandRowBytes = kProductDepth * sizeof(uint16_t);

struct UnitAttentionScratch {
  // First operands: [tile of rows][step of dimensions].
  alignas(64) uint16_t queries[kUnitBlockElements];
  // [tile of rows][tile of dimensions].
  alignas(64) float output[kUnitBlockElements];
  alignas(64) float maximums[kBf16AttentionRows];
  alignas(64) float sums[kBf16AttentionRows][16];
  // A chunk's second operands.
  alignas(64) uint16_t keys[kAttentionChunkTokens * kMaxHeadDimension];
  alignas(64) uint16_t values[kAttentionChunkTokens * kMaxHeadDimension];
  // The scores of a group, in whose place the probabilities are put, each row's in its first half.
  alignas(64) float scores[kUnitGroupRows * kUnitScoreStride];
  // The output of a group as it would be.
  alignas(64) float trial[kUnitGroupRows * kMaxHeadDimension];
  // A page's scales of the keys in which its values lie.
  alignas(64) float scales[kPageTokens * kMaxHeadDimension / kKvBlockDimensions];
};

// 2^x for x up to 0, or NaN, as a bf16; see attention.h.
inline F32x16 probability(F32x16 x) {
  const F32x16 r = fraction(x);
  F32x16 result = fma(broadcast(kBf16PowerCubic), r, broadcast(kBf16PowerSquare));
  result = fma(result, r, broadcast(kBf16PowerLinear));
  result = fma(result, r, broadcast(kBf16PowerRounding + 1.0F));
  return scale_by_floor(sub(result, broadcast(kBf16PowerRounding)), x);
}

// The greatest of a row's scores in `columns`, whole pairs of vectors, and of -FLT_MAX. What lies
// outside of `view` becomes -infinity.
inline float greatest_unit_score(TokenRange columns, TokenRange view, float* scores) {
  if (view.begin > columns.begin || view.end < columns.end) {
    for (size_t token = columns.begin; token < columns.end; token += 16) {
      store(scores + token, mask_scores(load(scores + token), token, view));
    }
  }
  F32x16 first = broadcast(-FLT_MAX);
  F32x16 second = first;
  for (size_t token = columns.begin; token < columns.end; token += 32) {
    // A NaN is passed over here, and seen in the sum.
    first = max(load(scores + token), first);
    second = max(load(scores + token + 16), second);
  }
  return max_lanes(max(first, second));
}

// Turns a row's scores in `columns` into probabilities relative to `maximum`, as bf16 from the
// row's begin on; returns `sum` and theirs.
inline F32x16 take_unit_probabilities(TokenRange columns, float maximum, F32x16 sum,
                                      float* scores) {
  const F32x16 offset = broadcast(maximum);
  auto* probabilities = reinterpret_cast<std::byte*>(scores);
#pragma GCC unroll 4
  for (size_t token = columns.begin; token < columns.end; token += 32) {
    const F32x16 first = probability(sub(load(scores + token), offset));
    const F32x16 second = probability(sub(load(scores + token + 16), offset));
    sum = add(add(sum, first), second);
    store_upper_halves(probabilities + token * sizeof(uint16_t), first, second);
  }
  return sum;
}

// A block's rows over all chunks.
template <typename Unit>
class UnitAttention {
 public:
  UnitAttention(const AttentionArguments& arguments, Unit& unit, UnitAttentionScratch& scratch)
      : arguments_(arguments),
        unit_(unit),
        scratch_(scratch),
        dimensions_(arguments.head_dimension),
        padded_(padded_dimension(arguments.value_dimension)),
        steps_(depth_steps(dimensions_)),
        tiles_(padded_ / kProductSide) {
    // Dimensions beyond the last, which no page fills.
    if (dimensions_ % kProductDepth != 0) {
      __builtin_memset(scratch.keys, 0,
                       kAttentionChunkTokens * steps_ * kProductDepth * sizeof(uint16_t));
    }
  }

  // The most rows of a block.
  size_t rows_most() const {
    const size_t rows = kUnitBlockElements / greater(steps_ * kProductDepth, padded_);
    return smaller(rows / kUnitGroupRows * kUnitGroupRows, kBf16AttentionRows);
  }

  void run(size_t first, size_t count) {
    first_ = first;
    count_ = count;
    begin_rows();
    const size_t end = keys_of(count - 1).end;
    size_t chunk = keys_of(0).begin / kAttentionChunkTokens;
    for (; chunk * kAttentionChunkTokens < end; ++chunk) {
      take_chunk(chunk);
    }
    write_outputs();
  }

 private:
  size_t token_of(size_t row) const { return (first_ + row) / arguments_.query_count; }
  size_t query_of(size_t row) const { return (first_ + row) % arguments_.query_count; }

  // The keys that a row sees, by position.
  TokenRange keys_of(size_t row) const { return seen_keys(arguments_, token_of(row)); }
  // Those of the chunk at hand, counted from its first.
  TokenRange view_of(size_t row) const {
    const TokenRange keys = keys_of(row);
    return {smaller(greater(keys.begin, chunk_first_) - chunk_first_, kAttentionChunkTokens),
            smaller(keys.end - smaller(keys.end, chunk_first_), kAttentionChunkTokens)};
  }

  void begin_rows() {
    const float factor = arguments_.scale * kBf16ScoreScale;
    for (size_t row = 0; row < count_; ++row) {
      const float* from = arguments_.queries + token_of(row) * arguments_.query_token_stride +
                          query_of(row) * arguments_.query_stride;
      uint16_t* to = scratch_.queries + row / kProductSide * steps_ * kOperandElements +
                     row % kProductSide * kProductDepth;
      for (size_t begin = 0; begin < dimensions_; begin += kProductDepth) {
        const size_t left = smaller(dimensions_ - begin, kProductDepth);
        const F32x16 low = load_first(from + begin, smaller(left, 16));
        const F32x16 high = left > 16 ? load_first(from + begin + 16, left - 16) : zero();
        store_rounded(to + begin / kProductDepth * kOperandElements, mul(low, broadcast(factor)),
                      mul(high, broadcast(factor)));
      }
      store(scratch_.sums[row], zero());
    }
    const size_t rows = (count_ + kProductSide - 1) / kProductSide * kProductSide;
    for (size_t row = 0; row < rows; row += 16) {
      store(scratch_.maximums + row, broadcast(-FLT_MAX));
    }
    set_zero(rows * padded_, scratch_.output);
    if (arguments_.sinks == nullptr) return;
    for (size_t row = 0; row < count_; ++row) {
      scratch_.maximums[row] = arguments_.sinks[query_of(row)] * kBf16ScoreScale;
      scratch_.sums[row][0] = 1.0F;
    }
  }

  // The chunk's pages that are seen, as operands; values outside of `tokens` as zeros.
  void pack_page_values(size_t chunk, TokenRange tokens) {
    const bool in_keys = arguments_.values == nullptr;
    each_page(chunk, tokens,
              [&](const std::byte* keys, const std::byte* values, size_t page, TokenRange in_page) {
                uint16_t* to = scratch_.values +
                               page * kPageTokens / kProductDepth * tiles_ * kOperandElements;
                with_stored_form(stored_value_format(arguments_), [&]<KvFormat kFormat>() {
                  if (!in_keys) return pack_values<kFormat>(values, padded_, in_page, to);
                  pack_values_in_keys<kFormat>(
                      stored_rows<kFormat>(keys, dimensions_, kPageVectors, scratch_.scales),
                      arguments_.value_dimension, in_page, to);
                });
              });
  }
  void pack_page_keys(size_t chunk, TokenRange tokens) {
    each_page(chunk, tokens,
              [&](const std::byte* keys, const std::byte*, size_t page, TokenRange in_page) {
                uint16_t* to = scratch_.keys + page * kPageTokens * steps_ * kProductDepth;
                with_stored_form(arguments_.format.keys, [&]<KvFormat kFormat>() {
                  pack_keys<kFormat>(keys, dimensions_, in_page, to);
                });
              });
  }
  template <typename Function>
  void each_page(size_t chunk, TokenRange tokens, Function function) {
    const uint32_t* pages = arguments_.pages + chunk * (kAttentionChunkTokens / kPageTokens);
    for (size_t page = tokens.begin / kPageTokens; page * kPageTokens < tokens.end; ++page) {
      const size_t first = page * kPageTokens;
      const TokenRange in_page = {greater(tokens.begin, first) - first,
                                  smaller(tokens.end - first, kPageTokens)};
      const size_t offset = pages[page] * arguments_.page_stride_bytes;
      const std::byte* values = arguments_.values == nullptr ? nullptr : arguments_.values + offset;
      function(arguments_.keys + offset, values, page, in_page);
    }
  }

  // Whether a value that not all rows see is no finite number: 0 times it is not 0.
  bool hides_infinities(TokenRange seen, TokenRange by_all) const {
    const auto found = [&](size_t begin, size_t end) {
      if (begin >= end) return false;
      const size_t size = tiles_ * kOperandElements;
      for (size_t i = begin / kProductDepth * size; i < depth_steps(end) * size; i += 32) {
        if (any_not_finite(scratch_.values + i)) return true;
      }
      return false;
    };
    if (empty(by_all)) return found(seen.begin, seen.end);
    return found(seen.begin, by_all.begin) || found(by_all.end, seen.end);
  }

  void take_chunk(size_t chunk) {
    chunk_first_ = chunk * kAttentionChunkTokens;
    // Windows of consecutive tokens leave no gap.
    const TokenRange first = view_of(0);
    const TokenRange last = view_of(count_ - 1);
    const TokenRange seen = {first.begin, last.end};
    pack_page_keys(chunk, seen);
    pack_page_values(chunk, seen);
    const bool one_by_one = hides_infinities(seen, {last.begin, first.end});
    for (size_t row = 0; row < count_; row += kUnitGroupRows) {
      const size_t rows = smaller(kUnitGroupRows, count_ - row);
      const TokenRange any = {view_of(row).begin, view_of(row + rows - 1).end};
      if (empty(any)) continue;
      const TokenRange columns = {any.begin / kProductDepth * kProductDepth,
                                  depth_steps(any.end) * kProductDepth};
      if (rows > kProductSide) {
        score_rows<2>(row, columns);
      } else {
        score_rows<1>(row, columns);
      }
      take_softmax(row, rows, columns);
      if (one_by_one) {
        add_one_by_one(chunk, row, rows, columns);
      } else {
        add_values(rows, scratch_.output + row * padded_, columns);
      }
    }
  }

  template <size_t kRowTiles>
  void score_rows(size_t row, TokenRange columns) {
    const uint16_t* queries = scratch_.queries + row * steps_ * kProductDepth;
    const size_t tile = steps_ * kOperandElements;
    constexpr size_t kStride = kUnitScoreStride * sizeof(float);
    for (size_t token = columns.begin; token < columns.end; token += kProductDepth) {
      const uint16_t* keys = scratch_.keys + token / kProductSide * tile;
      unit_.template zero<0>();
      unit_.template zero<1>();
      if constexpr (kRowTiles > 1) unit_.template zero<2>();
      if constexpr (kRowTiles > 1) unit_.template zero<3>();
      for (size_t step = 0; step < tile; step += kOperandElements) {
        unit_.template load<4>(queries + step, kOperandRowBytes);
        unit_.template load<6>(keys + step, kOperandRowBytes);
        unit_.template multiply<0, 4, 6>();
        unit_.template load<7>(keys + tile + step, kOperandRowBytes);
        unit_.template multiply<1, 4, 7>();
        if constexpr (kRowTiles > 1) {
          unit_.template load<5>(queries + tile + step, kOperandRowBytes);
          unit_.template multiply<2, 5, 6>();
          unit_.template multiply<3, 5, 7>();
        }
      }
      float* scores = scratch_.scores + token;
      unit_.template store<0>(scores, kStride);
      unit_.template store<1>(scores + kProductSide, kStride);
      if constexpr (kRowTiles > 1) {
        unit_.template store<2>(scores + kProductSide * kUnitScoreStride, kStride);
        unit_.template store<3>(scores + kProductSide * kUnitScoreStride + kProductSide, kStride);
      }
    }
  }

  void take_softmax(size_t row, size_t rows, TokenRange columns) {
    if (changes_scores(arguments_)) {
      for (size_t i = 0; i < rows; ++i) {
        change_scores(arguments_, token_of(row + i), query_of(row + i), chunk_first_, columns,
                      kBf16ScoreScale, scratch_.scores + i * kUnitScoreStride);
      }
    }
    for (size_t tile = 0; tile < rows; tile += kProductSide) {
      take_tile_softmax(row + tile, smaller(kProductSide, rows - tile), columns,
                        scratch_.scores + tile * kUnitScoreStride);
    }
  }

  void take_tile_softmax(size_t row, size_t rows, TokenRange columns, float* scores) {
    alignas(64) float maximums[16];
    alignas(64) float factors[16];
    store(maximums, broadcast(-FLT_MAX));
    for (size_t i = 0; i < rows; ++i) {
      maximums[i] = greatest_unit_score(columns, view_of(row + i), scores + i * kUnitScoreStride);
    }
    const F32x16 before = load(scratch_.maximums + row);
    const F32x16 after = max(before, load(maximums));
    const F32x16 factor = bounded_exponential(mul(sub(before, after), broadcast(kBf16ScoreUnit)));
    store(scratch_.maximums + row, after);
    store(maximums, after);
    store(factors, factor);
    if (any_not_one(factor)) scale_rows(row, rows, factors);
    for (size_t i = 0; i < rows; ++i) {
      const F32x16 sum = load(scratch_.sums[row + i]);
      store(scratch_.sums[row + i],
            take_unit_probabilities(columns, maximums[i], sum, scores + i * kUnitScoreStride));
    }
  }

  // Brings the sums of a tile's rows in terms of their new maximums.
  void scale_rows(size_t row, size_t rows, const float* factors) {
    float* output = scratch_.output + row * padded_;
    for (size_t i = 0; i < rows; ++i) {
      const F32x16 factor = broadcast(factors[i]);
      store(scratch_.sums[row + i], mul(load(scratch_.sums[row + i]), factor));
      for (size_t tile = 0; tile < tiles_; ++tile) {
        float* place = output + tile * kProductSums + i * kProductSide;
        store(place, mul(load(place), factor));
      }
    }
  }

  void add_values(size_t rows, float* output, TokenRange columns) {
    if (rows > kProductSide) {
      add_value_rows<2>(output, columns);
    } else {
      add_value_rows<1>(output, columns);
    }
  }

  template <size_t kRowTiles>
  void add_value_rows(float* output, TokenRange columns) {
    size_t tile = 0;
    for (; tile + 2 <= tiles_; tile += 2) add_value_tiles<kRowTiles, 2>(output, tile, columns);
    if (tile < tiles_) add_value_tiles<kRowTiles, 1>(output, tile, columns);
  }

  template <size_t kRowTiles, size_t kTiles>
  void add_value_tiles(float* rows, size_t tile, TokenRange columns) {
    float* output = rows + tile * kProductSums;
    float* second = output + kProductSide * padded_;
    constexpr size_t kSumBytes = kProductSide * sizeof(float);
    constexpr size_t kStride = kUnitScoreStride * sizeof(float);
    unit_.template load<0>(output, kSumBytes);
    if constexpr (kTiles > 1) unit_.template load<1>(output + kProductSums, kSumBytes);
    if constexpr (kRowTiles > 1) unit_.template load<2>(second, kSumBytes);
    if constexpr (kRowTiles > 1 && kTiles > 1) {
      unit_.template load<3>(second + kProductSums, kSumBytes);
    }
    const auto* probabilities = reinterpret_cast<const std::byte*>(scratch_.scores);
    const uint16_t* values = scratch_.values + tile * kOperandElements;
    for (size_t token = columns.begin; token < columns.end; token += kProductDepth) {
      const std::byte* first = probabilities + token * sizeof(uint16_t);
      const uint16_t* operand = values + token / kProductDepth * tiles_ * kOperandElements;
      unit_.template load<4>(first, kStride);
      unit_.template load<6>(operand, kOperandRowBytes);
      unit_.template multiply<0, 4, 6>();
      if constexpr (kTiles > 1) {
        unit_.template load<7>(operand + kOperandElements, kOperandRowBytes);
        unit_.template multiply<1, 4, 7>();
      }
      if constexpr (kRowTiles > 1) {
        unit_.template load<5>(first + kProductSide * kStride, kStride);
        unit_.template multiply<2, 5, 6>();
        if constexpr (kTiles > 1) unit_.template multiply<3, 5, 7>();
      }
    }
    unit_.template store<0>(output, kSumBytes);
    if constexpr (kTiles > 1) unit_.template store<1>(output + kProductSums, kSumBytes);
    if constexpr (kRowTiles > 1) unit_.template store<2>(second, kSumBytes);
    if constexpr (kRowTiles > 1 && kTiles > 1) {
      unit_.template store<3>(second + kProductSums, kSumBytes);
    }
  }

  // The same, each token with nothing but the values that it sees.
  void add_one_by_one(size_t chunk, size_t row, size_t rows, TokenRange columns) {
    float* output = scratch_.output + row * padded_;
    const size_t floats = (rows + kProductSide - 1) / kProductSide * kProductSide * padded_;
    for (size_t begin = 0; begin < rows;) {
      size_t end = begin + 1;
      while (end < rows && token_of(row + end) == token_of(row + begin)) ++end;
      const TokenRange view = view_of(row + begin);
      if (!empty(view)) {
        pack_page_values(chunk, view);
        const TokenRange own = {view.begin / kProductDepth * kProductDepth,
                                depth_steps(view.end) * kProductDepth};
        __builtin_memcpy(scratch_.trial, output, floats * sizeof(float));
        add_values(rows, scratch_.trial, common(columns, own));
        for (size_t i = begin; i < end; ++i) copy_output(i, scratch_.trial, output);
      }
      begin = end;
    }
  }

  void copy_output(size_t row, const float* from, float* to) {
    const size_t place = row / kProductSide * kProductSide * padded_ + row % kProductSide * 16;
    for (size_t tile = 0; tile < tiles_; ++tile) {
      store(to + place + tile * kProductSums, load(from + place + tile * kProductSums));
    }
  }

  void write_outputs() {
    for (size_t row = 0; row < count_; ++row) {
      const F32x16 sum = broadcast(sum_lanes(load(scratch_.sums[row])));
      const float* from = scratch_.output + row / kProductSide * kProductSide * padded_ +
                          row % kProductSide * kProductSide;
      float* to = arguments_.output + token_of(row) * arguments_.output_token_stride +
                  query_of(row) * arguments_.output_stride;
      for (size_t tile = 0; tile < tiles_; ++tile) {
        const F32x16 result = add(div(load(from + tile * kProductSums), sum), zero());
        store_first(to + tile * kProductSide, result,
                    smaller(kProductSide, arguments_.value_dimension - tile * kProductSide));
      }
    }
  }

  const AttentionArguments& arguments_;
  Unit& unit_;
  UnitAttentionScratch& scratch_;
  size_t dimensions_;  // of keys
  size_t padded_;      // dimensions of values
  size_t steps_;       // of dimensions, in a score
  size_t tiles_;       // of dimensions, in an output
  size_t first_ = 0;
  size_t count_ = 0;
  size_t chunk_first_ = 0;
};

template <typename Unit>
[[gnu::noinline]] void attend_bf16(const AttentionArguments& arguments) {
  UnitAttentionScratch scratch;
  Unit unit;
  unit.shape(kProductSide, kProductSide);
  UnitAttention<Unit> attention(arguments, unit, scratch);
  const size_t rows = arguments.token_count * arguments.query_count;
  for (size_t first = 0; first < rows; first += attention.rows_most()) {
    attention.run(first, smaller(rows - first, attention.rows_most()));
  }
}

// The row of the table with attention in bf16 through `Unit`.
template <typename Unit>
constexpr KernelTable with_unit_attention(KernelTable row) {
  row.attend_bf16 = without_denormals<attend_bf16<Unit>>;
  return row;
}

}  // namespace
}  // namespace lockstep
