// The products of attention in bf16 for a group of rows, in steps, so that vectors can be computed
// in between: the matrix unit works beside them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/attention_unit_pack.inl.h"

namespace lockstep {
namespace {

inline constexpr size_t kUnitGroupRows = 2 * kProductSide;
// A line more than a chunk, so that the rows of a tile lie in different sets of the cache.
inline constexpr size_t kUnitScoreStride = kAttentionChunkTokens + 16;
inline constexpr size_t kScoreRowBytes = kUnitScoreStride * sizeof(float);
inline constexpr size_t kOperandRowBytes = kProductDepth * sizeof(uint16_t);
inline constexpr size_t kSumRowBytes = kProductSide * sizeof(float);

// Up to 32 rows and the columns of a chunk, whole steps of them, that any of them sees.
struct UnitGroup {
  size_t row;  // of the block
  size_t rows;
  TokenRange columns;
  // Scores, in whose place the probabilities are put, each row's in its first half.
  float* scores;
};

// Scores of a group: a step is a tile of tokens. The tiles take turns in two pairs of sums, so that
// one is stored while the other is added to.
template <typename Unit>
class UnitScores {
 public:
  // `queries`: the group's. `keys`: the chunk's. Both have `depth` steps of dimensions.
  UnitScores(Unit& unit, const UnitGroup& group, const uint16_t* queries, const uint16_t* keys,
             size_t depth)
      : unit_(unit),
        group_(group),
        queries_(queries),
        keys_(keys),
        tile_(depth * kOperandElements) {}

  size_t count() const { return (group_.columns.end - group_.columns.begin) / kProductSide + 1; }
  void take(size_t index) {
    if (group_.rows > kProductSide) return take_rows<2>(index);
    take_rows<1>(index);
  }

 private:
  template <size_t kRowTiles>
  void take_rows(size_t index) {
    if (index % 2 == 0) {
      take_pair<0, kRowTiles>(index);
    } else {
      take_pair<2, kRowTiles>(index);
    }
  }

  template <int kSum, size_t kRowTiles>
  void take_pair(size_t index) {
    const size_t token = group_.columns.begin + index * kProductSide;
    if (index + 1 < count()) multiply<kSum, kRowTiles>(token);
    if (index > 0) store<kSum ^ 2, kRowTiles>(token - kProductSide);
  }

  template <int kSum, size_t kRowTiles>
  [[gnu::always_inline]] void multiply(size_t token) {
    constexpr int kKeys = 6 + kSum / 2;
    const uint16_t* keys = keys_ + token / kProductSide * tile_;
    unit_.template zero<kSum>();
    if constexpr (kRowTiles > 1) unit_.template zero<kSum + 1>();
    for (size_t step = 0; step < tile_; step += kOperandElements) {
      unit_.template load<kKeys>(keys + step, kOperandRowBytes);
      unit_.template load<4>(queries_ + step, kOperandRowBytes);
      unit_.template multiply<kSum, 4, kKeys>();
      if constexpr (kRowTiles > 1) {
        unit_.template load<5>(queries_ + tile_ + step, kOperandRowBytes);
        unit_.template multiply<kSum + 1, 5, kKeys>();
      }
    }
  }

  template <int kSum, size_t kRowTiles>
  [[gnu::always_inline]] void store(size_t token) {
    float* scores = group_.scores + token;
    unit_.template store<kSum>(scores, kScoreRowBytes);
    if constexpr (kRowTiles > 1) {
      unit_.template store<kSum + 1>(scores + kProductSide * kUnitScoreStride, kScoreRowBytes);
    }
  }

  Unit& unit_;
  const UnitGroup& group_;
  const uint16_t* queries_;
  const uint16_t* keys_;
  size_t tile_;  // elements of a tile of rows or tokens
};

// Probabilities times values, added to a group's output: a step is 32 tokens of two tiles of
// dimensions, or of a last one.
template <typename Unit>
class UnitOutputs {
 public:
  // `values`: the chunk's, `output`: the group's. Both have `tiles` tiles of dimensions.
  UnitOutputs(Unit& unit, const UnitGroup& group, const uint16_t* values, size_t tiles,
              float* output)
      : unit_(unit),
        group_(group),
        values_(values),
        tiles_(tiles),
        output_(output),
        depth_((group.columns.end - group.columns.begin) / kProductDepth) {}

  size_t count() const { return (tiles_ + 1) / 2 * depth_; }
  void take(size_t index) {
    const size_t tile = index / depth_ * 2;
    const bool two = tile + 2 <= tiles_;
    if (group_.rows > kProductSide) {
      if (two) return take_tiles<2, 2>(tile, index % depth_);
      return take_tiles<2, 1>(tile, index % depth_);
    }
    if (two) return take_tiles<1, 2>(tile, index % depth_);
    take_tiles<1, 1>(tile, index % depth_);
  }

 private:
  template <size_t kRowTiles, size_t kTiles>
  void take_tiles(size_t tile, size_t step) {
    float* sums = output_ + tile * kProductSums;
    if (step == 0) move<true, kRowTiles, kTiles>(sums);
    const size_t token = group_.columns.begin + step * kProductDepth;
    const auto* first =
        reinterpret_cast<const std::byte*>(group_.scores) + token * sizeof(uint16_t);
    const uint16_t* values = values_ + (token / kProductDepth * tiles_ + tile) * kOperandElements;
    unit_.template load<4>(first, kScoreRowBytes);
    unit_.template load<6>(values, kOperandRowBytes);
    unit_.template multiply<0, 4, 6>();
    if constexpr (kTiles > 1) {
      unit_.template load<7>(values + kOperandElements, kOperandRowBytes);
      unit_.template multiply<1, 4, 7>();
    }
    if constexpr (kRowTiles > 1) {
      unit_.template load<5>(first + kProductSide * kScoreRowBytes, kScoreRowBytes);
      unit_.template multiply<2, 5, 6>();
      if constexpr (kTiles > 1) unit_.template multiply<3, 5, 7>();
    }
    if (step + 1 == depth_) move<false, kRowTiles, kTiles>(sums);
  }

  template <bool kLoad, size_t kRowTiles, size_t kTiles>
  [[gnu::always_inline]] void move(float* sums) {
    float* second = sums + kProductSide * kProductSide * tiles_;
    move_one<kLoad, 0>(sums);
    if constexpr (kTiles > 1) move_one<kLoad, 1>(sums + kProductSums);
    if constexpr (kRowTiles > 1) move_one<kLoad, 2>(second);
    if constexpr (kRowTiles > 1 && kTiles > 1) move_one<kLoad, 3>(second + kProductSums);
  }
  template <bool kLoad, int kTile>
  [[gnu::always_inline]] void move_one(float* sums) {
    if constexpr (kLoad) {
      unit_.template load<kTile>(sums, kSumRowBytes);
    } else {
      unit_.template store<kTile>(sums, kSumRowBytes);
    }
  }

  Unit& unit_;
  const UnitGroup& group_;
  const uint16_t* values_;
  size_t tiles_;
  float* output_;
  size_t depth_;
};

}  // namespace
}  // namespace lockstep
