// Kinds of bytes: so few that a byte can hold a set of them, and such that what patterns repeat
// ("[a-z]+", "\w*") is whole kinds.
#pragma once

#include <cstdint>

namespace lockstep {

using ByteKinds = uint8_t;  // a set: bits as kind_of() gives them

constexpr ByteKinds kind_of(uint8_t byte) {
  if (byte >= 'a' && byte <= 'z') return 1U << 0U;
  if (byte >= 'A' && byte <= 'Z') return 1U << 1U;
  if (byte >= '0' && byte <= '9') return 1U << 2U;
  if (byte == ' ') return 1U << 3U;
  if (byte == '_') return 1U << 4U;
  if (byte == '-') return 1U << 5U;
  // The marks that texts within quotes exclude are not of the kind of other marks.
  const bool mark = byte > ' ' && byte < 0x7F && byte != '"' && byte != '\\';
  return mark ? 1U << 6U : 1U << 7U;
}

}  // namespace lockstep
