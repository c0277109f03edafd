// 16 lanes of 4 bytes and of 32-bit integers, and the dot product of bytes, for AVX-512 with VNNI.
// Beside lanes_avx512.h, and as there: the three bytes_*.h give the same integers.
// Included by cpu/avx512.cpp alone.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/byte_table.h"

namespace lockstep {
namespace {

// Tokens that one sweep over a block of weights serves: an integer and a float accumulator each,
// and the eight vectors of weights, fit into 32 registers.
constexpr size_t kTokenTile = 8;
// The most panels that are walked side by side for a single token.
constexpr size_t kPanelTile = 2;
// How far ahead of a kernel's loads memory is asked for, into the second cache: of lines on their
// way into the first there may be few at once. On two cores of a Zen 4, GB/s without, 4, 6 and 8
// KiB ahead: 2 tokens Q4_0 33.0, 29.7, 33.2, 31.2, Q4_K 32.6, 30.2, 33.1, 31.3; 4 tokens
// Q4_0 32.4, 30.2, 32.3, 31.0, Q8_0 32.4, 28.3, 30.1, 29.9; 8 tokens Q6_K 19.8, 21.8, 23.1, 23.3,
// Q8_0 24.1, 30.6, 32.6, 30.8. Reading alone reached 33 to 34.
constexpr size_t kPrefetchBytes = 6144;
// Whether it is asked for ahead of the only token of one stream, too. Zen 4's own prefetching
// mostly has enough time there: asked for twice, lines wait in a queue that is short. Not where
// four blocks share the lines of a step, which are met again and again: on the same cores, without
// and 6 KiB ahead, Q6_K 28.9, 31.0, Q3_K 29.1, 33.0, Q2_K 24.4, 34.3; but Q4_K 32.5, 29.6,
// Q5_K 35.0, 33.6.
template <typename Tile>
constexpr bool kPrefetchesForOneToken = Tile::kStepBlocks == 4;
// Whether a group of activations, once read, may be multiplied with the weights of two panels: that
// takes two integer accumulators for each token of a tile.
constexpr bool kSharesActivations = true;
// Products of floats: the most tokens and panels side by side, and the most sums.
constexpr size_t kFloatTokens = 8;
constexpr size_t kFloatPanels = 4;
constexpr size_t kFloatChains = 16;
// The same of products with many tokens: 24 sums, two vectors of weights and one of activations.
constexpr size_t kFloatTileTokens = 12;
constexpr size_t kFloatTilePanels = 2;

struct Bytes {
  __m512i v;
};
struct I32x16 {
  __m512i v;
};

inline Bytes load_bytes(const std::byte* p) {
  return {_mm512_loadu_si512(p)};
}
inline Bytes bit_or(Bytes a, Bytes b) {
  return {_mm512_or_si512(a.v, b.v)};
}
// The bits of `mask`, in every lane of 4 bytes.
inline Bytes bit_and(Bytes a, uint32_t mask) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(mask)))};
}
// The lanes as 32-bit words.
template <unsigned kBits>
inline Bytes shift_left(Bytes a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <unsigned kBits>
inline Bytes shift_right(Bytes a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}
inline Bytes shift_right(Bytes a, size_t bits) {
  return {_mm512_srl_epi32(a.v, _mm_cvtsi64_si128(static_cast<long long>(bits)))};
}
// Byte kByte of each lane, without and with its sign.
template <unsigned kByte>
inline I32x16 unsigned_byte(Bytes a) {
  return {_mm512_and_si512(_mm512_srli_epi32(a.v, 8 * kByte), _mm512_set1_epi32(0xFF))};
}
template <unsigned kByte>
inline I32x16 signed_byte(Bytes a) {
  return {_mm512_srai_epi32(_mm512_slli_epi32(a.v, 24 - 8 * kByte), 24)};
}
inline I32x16 broadcast_int(int32_t x) {
  return {_mm512_set1_epi32(x)};
}
inline I32x16 sub(I32x16 a, I32x16 b) {
  return {_mm512_sub_epi32(a.v, b.v)};
}
// a * 2^kBits.
template <unsigned kBits>
inline I32x16 shift_left(I32x16 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
inline F32x16 to_float(I32x16 a) {
  return {_mm512_cvtepi32_ps(a.v)};
}

// Signed weights are multiplied as unsigned bytes with 2^7 added.
constexpr unsigned kSignedOffsetBits = 7;
inline Bytes offset_signed(Bytes a) {
  return {_mm512_xor_si512(a.v, _mm512_set1_epi32(static_cast<int>(0x80808080U)))};
}

// The entry of each byte, of which the upper four bits are zero.
inline Bytes look_up(Bytes codes, const ByteTable& table) {
  const __m128i entries = _mm_load_si128(reinterpret_cast<const __m128i*>(table.entries));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), codes.v)};
}

// 2^(e - 128) of 16 bytes e.
inline F32x16 load_exponents(const std::byte* p) {
  const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  const __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
  return {_mm512_castsi512_ps(
      _mm512_mask_sllv_epi32(normal, is_small, _mm512_set1_epi32(0x00200000), e))};
}
// tiny_float_scale() of 16 bytes.
inline F32x16 load_tiny_floats(const std::byte* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7);
  return {_mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(128.0F))};
}

// Has no use here: see bytes_avx2.h.
inline void keep_loaded(Bytes&) {}

// start + sum over groups of 4 k of weights * x, per lane. Used as: begin, then add for the groups
// 0 to 7 or, with kHalves, 0 to 3 or 4 to 7, then finish with the same start. kWidest is the
// greatest weight, as an unsigned byte, or 0 for weights from offset_signed. keep_order(), if
// called after each add with the same group, keeps the compiler from adding in another order.
template <int kWidest, bool kHalves>
struct Dot {
  __m512i sum;

  void begin(I32x16 start) { sum = start.v; }
  void add(Bytes weights, const std::byte* x, size_t) {
    int32_t four = 0;
    __builtin_memcpy(&four, x, sizeof four);
    sum = _mm512_dpbusd_epi32(sum, weights.v, _mm512_set1_epi32(four));
  }
  void keep_order(size_t) {}
  I32x16 finish(I32x16) const { return {sum}; }
};

// Integral values in [-128, 127] as bytes.
inline void store_int8(std::byte* p, F32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

}  // namespace
}  // namespace lockstep
