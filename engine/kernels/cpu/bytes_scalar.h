// 16 lanes of 4 bytes and of 32-bit integers, and the dot product of bytes, as plain arrays: the
// definition that the other two bytes_*.h match. Included by cpu/scalar.cpp alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/kernels/cpu/byte_table.h"
#include "engine/tensor/formats/coded.h"

namespace lockstep {
namespace {

// See bytes_avx512.h.
constexpr size_t kTokenTile = 1;
constexpr size_t kPanelTile = 1;
template <typename Tile>
constexpr bool kPrefetchesForOneToken = false;
constexpr size_t kPrefetchBytes = 4096;
constexpr bool kSharesActivations = false;
constexpr size_t kFloatTokens = 1;
constexpr size_t kFloatPanels = 1;
constexpr size_t kFloatChains = 1;
constexpr size_t kFloatTileTokens = 1;
constexpr size_t kFloatTilePanels = 1;

// Lane r holds 4 bytes, the first in the lowest bits.
struct Bytes {
  uint32_t v[16];
};
struct I32x16 {
  int32_t v[16];
};

template <typename Function>
inline Bytes each_word(Function function) {
  Bytes result;
  for (size_t lane = 0; lane < 16; ++lane) result.v[lane] = function(lane);
  return result;
}

inline Bytes load_bytes(const std::byte* p) {
  Bytes result;
  std::memcpy(result.v, p, sizeof result.v);
  return result;
}
inline Bytes bit_or(Bytes a, Bytes b) {
  return each_word([&](size_t i) { return a.v[i] | b.v[i]; });
}
// The bits of `mask`, in every lane of 4 bytes.
inline Bytes bit_and(Bytes a, uint32_t mask) {
  return each_word([&](size_t i) { return a.v[i] & mask; });
}
// The lanes as 32-bit words.
template <unsigned kBits>
inline Bytes shift_left(Bytes a) {
  return each_word([&](size_t i) { return a.v[i] << kBits; });
}
template <unsigned kBits>
inline Bytes shift_right(Bytes a) {
  return each_word([&](size_t i) { return a.v[i] >> kBits; });
}
inline Bytes shift_right(Bytes a, size_t bits) {
  return each_word([&](size_t i) { return a.v[i] >> bits; });
}
// Byte kByte of each lane, without and with its sign.
template <unsigned kByte>
inline I32x16 unsigned_byte(Bytes a) {
  I32x16 result;
  for (size_t i = 0; i < 16; ++i) {
    result.v[i] = static_cast<int32_t>((a.v[i] >> (8 * kByte)) & 0xFFU);
  }
  return result;
}
template <unsigned kByte>
inline I32x16 signed_byte(Bytes a) {
  I32x16 result;
  for (size_t i = 0; i < 16; ++i) result.v[i] = static_cast<int8_t>(a.v[i] >> (8 * kByte));
  return result;
}
inline I32x16 broadcast_int(int32_t x) {
  I32x16 result;
  for (int32_t& lane : result.v) lane = x;
  return result;
}
inline I32x16 sub(I32x16 a, I32x16 b) {
  for (size_t i = 0; i < 16; ++i) a.v[i] -= b.v[i];
  return a;
}
// a * 2^kBits.
template <unsigned kBits>
inline I32x16 shift_left(I32x16 a) {
  for (int32_t& lane : a.v) lane *= 1 << kBits;
  return a;
}
inline F32x16 to_float(I32x16 a) {
  return each_lane([&](size_t i) { return static_cast<float>(a.v[i]); });
}

// Signed weights stay signed here.
constexpr unsigned kSignedOffsetBits = 0;
inline Bytes offset_signed(Bytes a) {
  return a;
}

// The entry of each byte, of which the upper four bits are zero.
[[gnu::noinline]] inline Bytes look_up(const Bytes& codes, const ByteTable& table) {
  return each_word([&](size_t i) {
    uint32_t word = 0;
    for (unsigned byte = 0; byte < 4; ++byte) {
      word |= uint32_t{table.entries[codes.v[i] >> (8 * byte) & 15U]} << (8 * byte);
    }
    return word;
  });
}

// 2^(e - 128) of 16 bytes e.
inline F32x16 load_exponents(const std::byte* p) {
  return each_lane([&](size_t i) { return exponent_scale(std::to_integer<uint8_t>(p[i])); });
}
// tiny_float_scale() of 16 bytes.
inline F32x16 load_tiny_floats(const std::byte* p) {
  return each_lane([&](size_t i) { return tiny_float_scale(std::to_integer<uint8_t>(p[i])); });
}

// Has no use here: see bytes_avx2.h.
inline void keep_loaded(Bytes&) {}

// start + sum over groups of 4 k of weights * x, per lane; see bytes_avx512.h.
template <int kWidest, bool kHalves>
struct Dot {
  I32x16 sum;

  void begin(I32x16 start) { sum = start; }
  // Not inline: eight copies in every kernel would only cost time to compile.
  [[gnu::noinline]] void add(const Bytes& weights, const std::byte* x, size_t) {
    for (size_t lane = 0; lane < 16; ++lane) {
      for (size_t i = 0; i < 4; ++i) {
        const uint32_t byte = (weights.v[lane] >> (8 * i)) & 0xFFU;
        const int32_t weight =
            kWidest == 0 ? static_cast<int8_t>(byte) : static_cast<int32_t>(byte);
        sum.v[lane] += weight * static_cast<int8_t>(x[i]);
      }
    }
  }
  void keep_order(size_t) {}
  I32x16 finish(I32x16) const { return sum; }
};

// Integral values in [-128, 127] as bytes.
inline void store_int8(std::byte* p, F32x16 a) {
  for (size_t i = 0; i < 16; ++i) {
    p[i] = static_cast<std::byte>(static_cast<int8_t>(a.v[i]));
  }
}

}  // namespace
}  // namespace lockstep
