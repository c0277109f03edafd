// A model of AMX's tiles that needs no such instruction: what they do by their description in
// Intel's manual (LDTILECFG, TILELOADD, TDPBF16PS ...).
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/engine/kernels/tile_product.h"

namespace lockstep {
namespace {

class SoftwareUnit {
 public:
  void shape(size_t first, size_t second) {
    const size_t rows[kTileCount] = {first, first,  second,    second,
                                     first, second, kTileRows, kTileRows};
    for (size_t tile = 0; tile < kTileCount; ++tile) {
      tiles_[tile] = {};
      tiles_[tile].rows = rows[tile];
      tiles_[tile].row_bytes = kTileRowBytes;
    }
    // As the processor would.
    if (first == 0 || second == 0 || first > kTileRows || second > kTileRows) __builtin_trap();
  }

  template <int kTile>
  void zero() {
    __builtin_memset(tiles_[kTile].words, 0, sizeof tiles_[kTile].words);
  }
  template <int kTile>
  void load(const void* from, size_t stride) {
    zero<kTile>();
    for (size_t row = 0; row < tiles_[kTile].rows; ++row) {
      __builtin_memcpy(tiles_[kTile].words[row], static_cast<const std::byte*>(from) + row * stride,
                       kTileRowBytes);
    }
  }
  template <int kTile>
  void load_once(const void* from, size_t stride) {
    load<kTile>(from, stride);
  }
  template <int kTile>
  void store(void* to, size_t stride) {
    for (size_t row = 0; row < tiles_[kTile].rows; ++row) {
      __builtin_memcpy(static_cast<std::byte*>(to) + row * stride, tiles_[kTile].words[row],
                       kTileRowBytes);
    }
  }
  template <int kSum, int kFirst, int kSecond>
  void multiply() {
    add_bf16_product(tiles_[kSum], tiles_[kFirst], tiles_[kSecond]);
  }

 private:
  // Until there is a shape, whatever is done with them is wrong, and found: no tile has rows.
  Tile tiles_[kTileCount] = {};
};

}  // namespace
}  // namespace lockstep
