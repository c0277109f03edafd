// One pass over memory as fast as a core can: reading, writing or copying. Begin and size are
// multiples of 64 bytes, for two streams of 128.
#pragma once

#include <emmintrin.h>

#include <cstddef>
#include <cstdint>

namespace lockstep {

// The sum of what lies there, so that nothing can be left out.
inline int64_t read_all(const std::byte* begin, size_t bytes) {
  const auto* from = reinterpret_cast<const __m128i*>(begin);
  __m128i sums[4] = {};
  for (size_t i = 0; i + 4 <= bytes / sizeof(__m128i); i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) {
      sums[lane] = _mm_add_epi64(sums[lane], _mm_load_si128(from + i + lane));
    }
  }
  const __m128i sum =
      _mm_add_epi64(_mm_add_epi64(sums[0], sums[1]), _mm_add_epi64(sums[2], sums[3]));
  return _mm_cvtsi128_si64(sum);
}

// The same by two streams, one from the middle on: a core has more lines in flight that way on some
// machines, and on others fewer.
inline int64_t read_all_in_two_streams(const std::byte* begin, size_t bytes) {
  const auto* first = reinterpret_cast<const __m128i*>(begin);
  const auto* second = reinterpret_cast<const __m128i*>(begin + bytes / 2);
  __m128i sums[4] = {};
  for (size_t i = 0; i + 4 <= bytes / 2 / sizeof(__m128i); i += 4) {
    for (const __m128i* from : {first + i, second + i}) {
      for (size_t lane = 0; lane < 4; ++lane) {
        sums[lane] = _mm_add_epi64(sums[lane], _mm_load_si128(from + lane));
      }
    }
  }
  const __m128i sum =
      _mm_add_epi64(_mm_add_epi64(sums[0], sums[1]), _mm_add_epi64(sums[2], sums[3]));
  return _mm_cvtsi128_si64(sum);
}

// Past the caches: full lines need not be read first.
inline void write_all(std::byte* begin, size_t bytes, int64_t value) {
  auto* to = reinterpret_cast<__m128i*>(begin);
  const __m128i values = _mm_set1_epi64x(value);
  for (size_t i = 0; i + 4 <= bytes / sizeof(__m128i); i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) _mm_stream_si128(to + i + lane, values);
  }
  _mm_sfence();
}

inline void copy_all(const std::byte* begin, size_t bytes, std::byte* target) {
  const auto* from = reinterpret_cast<const __m128i*>(begin);
  auto* to = reinterpret_cast<__m128i*>(target);
  for (size_t i = 0; i + 4 <= bytes / sizeof(__m128i); i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) {
      _mm_stream_si128(to + i + lane, _mm_load_si128(from + i + lane));
    }
  }
  _mm_sfence();
}

}  // namespace lockstep
