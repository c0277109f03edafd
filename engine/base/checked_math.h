// Arithmetic on sizes that come from outside: an overflow is a value (nullopt), never a wrap.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

namespace lockstep {

constexpr std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

constexpr std::optional<uint64_t> checked_multiply(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// value / divisor (not 0), rounded up.
template <std::unsigned_integral T>
constexpr T divide_up(T value, T divisor) {
  return (value + divisor - 1) / divisor;
}

// The least multiple of `multiple` (not 0) that is at least `value`.
template <std::unsigned_integral T>
constexpr T round_up(T value, T multiple) {
  return divide_up(value, multiple) * multiple;
}

// As round_up, for a value from outside.
constexpr std::optional<uint64_t> checked_round_up(uint64_t value, uint64_t multiple) {
  const auto padded = checked_add(value, multiple - 1);
  if (!padded) return std::nullopt;
  return *padded / multiple * multiple;
}

}  // namespace lockstep
