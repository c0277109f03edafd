// The key of a page's contents: a keyed hash over the owner, the salt and all tokens up to the
// page's end. Without the secret two prefixes cannot be made to collide, and no fields be shifted
// into one another: each is preceded by what it is or how long.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

using HashSecret = std::array<uint64_t, 2>;

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;

  auto operator<=>(const Hash128&) const = default;
};

// SipHash-2-4 with 128 bits of output (Aumasson, Bernstein 2012): a keyed hash whose values nobody
// can foresee or make collide without the key.
Hash128 siphash_128(const HashSecret& secret, std::span<const std::byte> message);

using PrefixKey = Hash128;

// The key of the empty prefix of an owner's requests with this salt.
PrefixKey root_key(const HashSecret& secret, std::string_view owner, std::string_view salt);

// The key of the prefix that is `page_tokens`, one page, longer than that of `before`.
PrefixKey next_key(const HashSecret& secret, const PrefixKey& before,
                   std::span<const int32_t> page_tokens);

}  // namespace lockstep
