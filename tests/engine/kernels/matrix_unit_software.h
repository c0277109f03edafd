// A model of AMX's tiles: what its instructions do by their description in Intel's manual
// (LDTILECFG, TILELOADD, TDPBF16PS ...), element by element.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace lockstep {
namespace {

class SoftwareUnit {
 public:
  void shape(size_t first, size_t second) {
    const size_t rows[kTiles] = {first, first, second, second, first, second, kMostRows, kMostRows};
    for (size_t tile = 0; tile < kTiles; ++tile) {
      tiles_[tile] = {};
      tiles_[tile].rows = rows[tile];
    }
    // As the processor would.
    if (first == 0 || second == 0 || first > kMostRows || second > kMostRows) __builtin_trap();
  }

  template <int kTile>
  void zero() {
    __builtin_memset(tiles_[kTile].bits, 0, sizeof tiles_[kTile].bits);
  }
  template <int kTile>
  void load(const void* from, size_t stride) {
    zero<kTile>();
    for (size_t row = 0; row < tiles_[kTile].rows; ++row) {
      __builtin_memcpy(tiles_[kTile].bits[row], static_cast<const std::byte*>(from) + row * stride,
                       kRowBytes);
    }
  }
  template <int kTile>
  void store(void* to, size_t stride) {
    for (size_t row = 0; row < tiles_[kTile].rows; ++row) {
      __builtin_memcpy(static_cast<std::byte*>(to) + row * stride, tiles_[kTile].bits[row],
                       kRowBytes);
    }
  }
  template <int kSum, int kFirst, int kSecond>
  void multiply() {
    // Its arithmetic has a mode of its own: nearest even, small numbers are zero.
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(0x1F80U | 0x8040U);
    multiply(tiles_[kSum], tiles_[kFirst], tiles_[kSecond]);
    _mm_setcsr(mode);
  }

 private:
  static constexpr size_t kTiles = 8;
  static constexpr size_t kMostRows = 16;
  static constexpr size_t kRowBytes = 64;
  static constexpr size_t kRowWords = 16;

  struct Tile {
    uint32_t bits[kMostRows][kRowWords];
    size_t rows;
  };

  static float number(uint32_t bits) {
    float value = 0;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  }

  [[gnu::noinline]] static void multiply(Tile& sum, const Tile& first, const Tile& second) {
    for (size_t m = 0; m < sum.rows; ++m) {
      float even[kRowWords] = {};
      float odd[kRowWords] = {};
      for (size_t k = 0; k < kRowWords; ++k) {
        for (size_t n = 0; n < kRowWords; ++n) {
          const uint32_t a = first.bits[m][k];
          const uint32_t b = second.bits[k][n];
          even[n] = __builtin_fmaf(number(a << 16U), number(b << 16U), even[n]);
          odd[n] = __builtin_fmaf(number(a & 0xFFFF0000U), number(b & 0xFFFF0000U), odd[n]);
        }
      }
      for (size_t n = 0; n < kRowWords; ++n) {
        const float total = number(sum.bits[m][n]) + (even[n] + odd[n]);
        __builtin_memcpy(&sum.bits[m][n], &total, sizeof total);
      }
    }
  }

  // Until there is a shape, whatever is done with them is wrong, and found: no tile has rows.
  Tile tiles_[kTiles] = {};
};

}  // namespace
}  // namespace lockstep
