// A tile of AMX and the product of bf16 tiles, by the description of TDPBF16PS in Intel's manual,
// element by element.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace lockstep {
namespace {

constexpr size_t kTileCount = 8;
constexpr size_t kTileRows = 16;      // at most
constexpr size_t kTileRowBytes = 64;  // at most
constexpr size_t kTileRowWords = kTileRowBytes / 4;

// The words beyond its rows and columns are zero.
struct Tile {
  uint32_t words[kTileRows][kTileRowWords];
  size_t rows;
  size_t row_bytes;
};

inline float tile_number(uint32_t bits) {
  float value = 0;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// For add_bf16_product(), whose mode a compiler knows nothing of and could move arithmetic out of.
[[gnu::noinline]] inline void add_bf16_product_in_mode(Tile& sum, const Tile& first,
                                                       const Tile& second) {
  for (size_t m = 0; m < sum.rows; ++m) {
    float even[kTileRowWords] = {};
    float odd[kTileRowWords] = {};
    for (size_t k = 0; k < first.row_bytes / 4; ++k) {
      for (size_t n = 0; n < kTileRowWords; ++n) {
        const uint32_t a = first.words[m][k];
        const uint32_t b = second.words[k][n];
        even[n] = __builtin_fmaf(tile_number(a << 16U), tile_number(b << 16U), even[n]);
        odd[n] = __builtin_fmaf(tile_number(a & 0xFFFF0000U), tile_number(b & 0xFFFF0000U), odd[n]);
      }
    }
    for (size_t n = 0; n < sum.row_bytes / 4; ++n) {
      const float total = tile_number(sum.words[m][n]) + (even[n] + odd[n]);
      __builtin_memcpy(&sum.words[m][n], &total, sizeof total);
    }
  }
}

// sum += first x second: rows of pairs of bf16 times rows of such pairs. Its arithmetic has a mode
// of its own, whatever the caller's: nearest even, small numbers are zero.
inline void add_bf16_product(Tile& sum, const Tile& first, const Tile& second) {
  constexpr unsigned kMasked = 0x1F80;
  constexpr unsigned kFlushResults = 0x8000;
  constexpr unsigned kFlushOperands = 0x0040;
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(kMasked | kFlushResults | kFlushOperands);
  add_bf16_product_in_mode(sum, first, second);
  _mm_setcsr(mode);
}

}  // namespace
}  // namespace lockstep
