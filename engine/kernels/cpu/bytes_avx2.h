// 16 lanes of 4 bytes and of 32-bit integers, and the dot product of bytes, for AVX2.
// Beside lanes_avx2.h, and as there: the three bytes_*.h give the same integers.
// Included by cpu/avx2.cpp alone.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/byte_table.h"

namespace lockstep {
namespace {

// See bytes_avx512.h. A token takes two registers here, of 16 in all.
constexpr size_t kTokenTile = 4;
constexpr size_t kPanelTile = 2;
// On two cores of a Zen 3, the whole model's GB/s without and with it (medians of three, repeated):
// Q4_0 22 and 27, Q4_K 21 and 28, Q3_K 16 and 20; two streams side by side 27, 26, 16.
template <typename Tile>
constexpr bool kPrefetchesForOneToken = true;
constexpr size_t kPrefetchBytes = 4096;
constexpr bool kSharesActivations = false;
constexpr size_t kFloatTokens = 4;
constexpr size_t kFloatPanels = 4;
constexpr size_t kFloatChains = 4;
constexpr size_t kFloatTileTokens = 6;
constexpr size_t kFloatTilePanels = 1;

struct Bytes {
  __m256i low;   // lanes 0 to 7
  __m256i high;  // lanes 8 to 15
};
struct I32x16 {
  __m256i low;
  __m256i high;
};

inline Bytes load_bytes(const std::byte* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline Bytes bit_or(Bytes a, Bytes b) {
  return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
// The bits of `mask`, in every lane of 4 bytes.
inline Bytes bit_and(Bytes a, uint32_t mask) {
  const __m256i wide = _mm256_set1_epi32(static_cast<int>(mask));
  return {_mm256_and_si256(a.low, wide), _mm256_and_si256(a.high, wide)};
}
// The lanes as 32-bit words.
template <unsigned kBits>
inline Bytes shift_left(Bytes a) {
  return {_mm256_slli_epi32(a.low, kBits), _mm256_slli_epi32(a.high, kBits)};
}
template <unsigned kBits>
inline Bytes shift_right(Bytes a) {
  return {_mm256_srli_epi32(a.low, kBits), _mm256_srli_epi32(a.high, kBits)};
}
inline Bytes shift_right(Bytes a, size_t bits) {
  const __m128i count = _mm_cvtsi64_si128(static_cast<long long>(bits));
  return {_mm256_srl_epi32(a.low, count), _mm256_srl_epi32(a.high, count)};
}
// Byte kByte of each lane, without and with its sign.
template <unsigned kByte>
inline I32x16 unsigned_byte(Bytes a) {
  const __m256i mask = _mm256_set1_epi32(0xFF);
  return {_mm256_and_si256(_mm256_srli_epi32(a.low, 8 * kByte), mask),
          _mm256_and_si256(_mm256_srli_epi32(a.high, 8 * kByte), mask)};
}
template <unsigned kByte>
inline I32x16 signed_byte(Bytes a) {
  return {_mm256_srai_epi32(_mm256_slli_epi32(a.low, 24 - 8 * kByte), 24),
          _mm256_srai_epi32(_mm256_slli_epi32(a.high, 24 - 8 * kByte), 24)};
}
inline I32x16 broadcast_int(int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
inline I32x16 sub(I32x16 a, I32x16 b) {
  return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}
// a * 2^kBits.
template <unsigned kBits>
inline I32x16 shift_left(I32x16 a) {
  return {_mm256_slli_epi32(a.low, kBits), _mm256_slli_epi32(a.high, kBits)};
}
inline F32x16 to_float(I32x16 a) {
  return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
}

// Signed weights stay signed here: as unsigned bytes they would overflow the 16-bit sums.
constexpr unsigned kSignedOffsetBits = 0;
inline Bytes offset_signed(Bytes a) {
  return a;
}

// The entry of each byte, of which the upper four bits are zero.
inline Bytes look_up(Bytes codes, const ByteTable& table) {
  const __m128i entries = _mm_load_si128(reinterpret_cast<const __m128i*>(table.entries));
  const __m256i both = _mm256_broadcastsi128_si256(entries);
  return {_mm256_shuffle_epi8(both, codes.low), _mm256_shuffle_epi8(both, codes.high)};
}

// 2^(e - 128) of 16 bytes e.
inline __m256 power_of_two(__m256i e) {
  const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small));
}
inline F32x16 load_exponents(const std::byte* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {power_of_two(_mm256_cvtepu8_epi32(bytes)),
          power_of_two(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
// tiny_float_scale() of 16 bytes.
inline F32x16 load_tiny_floats(const std::byte* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7);
  const __m256 factor = _mm256_set1_ps(128.0F);
  return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), factor),
          _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), factor)};
}

// Makes the compiler have both here.
inline void hold(__m256i& low, __m256i& high) {
  asm("" : "+x"(low), "+x"(high));
}

// Keeps the compiler from loading what was loaded again for each use: short of registers, GCC 12
// prefers that to storing sums, of which there are fewer.
inline void keep_loaded(Bytes& a) {
  hold(a.low, a.high);
}

// start + sum over groups of 4 k of weights * x, per lane; see bytes_avx512.h.
// Products are summed in pairs of 16 bits for as many groups as cannot overflow them, whatever the
// weights (at most kWidest) and x (in [-127, 127]).
template <int kWidest, bool kHalves>
struct Dot {
  static constexpr size_t kFittingGroups = 32767 / (2 * 127 * kWidest);
  // A power of two, so that the last group of a sum is 7 or, of halves, 3.
  static constexpr size_t kSafeGroups = kFittingGroups >= 8 && !kHalves ? 8
                                        : kFittingGroups >= 4           ? 4
                                                                        : 2;
  __m256i pairs_low;
  __m256i pairs_high;
  __m256i low;
  __m256i high;

  void begin(I32x16) {
    pairs_low = _mm256_setzero_si256();
    pairs_high = _mm256_setzero_si256();
    low = _mm256_setzero_si256();
    high = _mm256_setzero_si256();
  }
  void add(Bytes weights, const std::byte* x, size_t group) {
    int32_t four = 0;
    __builtin_memcpy(&four, x, sizeof four);
    const __m256i wide = _mm256_set1_epi32(four);
    pairs_low = _mm256_add_epi16(pairs_low, _mm256_maddubs_epi16(weights.low, wide));
    pairs_high = _mm256_add_epi16(pairs_high, _mm256_maddubs_epi16(weights.high, wide));
    if ((group + 1) % kSafeGroups == 0) {
      const __m256i ones = _mm256_set1_epi16(1);
      low = _mm256_add_epi32(low, _mm256_madd_epi16(pairs_low, ones));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(pairs_high, ones));
      pairs_low = _mm256_setzero_si256();
      pairs_high = _mm256_setzero_si256();
    }
  }
  void keep_order(size_t group) {
    if ((group + 1) % kSafeGroups == 0) {
      hold(low, high);
    } else {
      hold(pairs_low, pairs_high);
    }
  }
  I32x16 finish(I32x16 start) const {
    return {_mm256_add_epi32(low, start.low), _mm256_add_epi32(high, start.high)};
  }
};

// Signed weights: |w| * (x with the sign of w). 128 * 127 * 2 fits into 16 bits.
template <bool kHalves>
struct Dot<0, kHalves> {
  __m256i low;
  __m256i high;

  void begin(I32x16 start) {
    low = start.low;
    high = start.high;
  }
  void add(Bytes weights, const std::byte* x, size_t) {
    int32_t four = 0;
    __builtin_memcpy(&four, x, sizeof four);
    const __m256i wide = _mm256_set1_epi32(four);
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i pairs_low =
        _mm256_maddubs_epi16(_mm256_abs_epi8(weights.low), _mm256_sign_epi8(wide, weights.low));
    const __m256i pairs_high =
        _mm256_maddubs_epi16(_mm256_abs_epi8(weights.high), _mm256_sign_epi8(wide, weights.high));
    low = _mm256_add_epi32(low, _mm256_madd_epi16(pairs_low, ones));
    high = _mm256_add_epi32(high, _mm256_madd_epi16(pairs_high, ones));
  }
  void keep_order(size_t) { hold(low, high); }
  I32x16 finish(I32x16) const { return {low, high}; }
};

// Integral values in [-128, 127] as bytes.
inline void store_int8(std::byte* p, F32x16 a) {
  const __m256i low = _mm256_cvtps_epi32(a.low);
  const __m256i high = _mm256_cvtps_epi32(a.high);
  const __m128i first =
      _mm_packs_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  const __m128i second =
      _mm_packs_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(first, second));
}

}  // namespace
}  // namespace lockstep
