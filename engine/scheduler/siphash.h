// SipHash-2-4 with 128 bits of output (Aumasson, Bernstein 2012): a keyed hash whose values nobody
// can foresee or make collide without the key.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

using HashSecret = std::array<uint64_t, 2>;

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;

  auto operator<=>(const Hash128&) const = default;
};

Hash128 siphash_128(const HashSecret& secret, std::span<const std::byte> message);

}  // namespace lockstep
