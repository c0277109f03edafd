// Sets of characters, and of kinds of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

struct CharacterRange {
  uint32_t low = 0;
  uint32_t high = 0;  // inclusive
  bool operator==(const CharacterRange&) const = default;
};

// A set of Unicode scalar values (no surrogates), as sorted ranges.
class CharacterSet {
 public:
  CharacterSet() = default;
  CharacterSet(std::initializer_list<CharacterRange> ranges);

  static CharacterSet all() { return {{0, 0x10FFFF}}; }

  void add(uint32_t low, uint32_t high) { ranges_.push_back({low, high}); }
  void add(const CharacterSet& other);
  // Sorts and merges; takes surrogates out. Called before the ranges are read.
  void normalize();
  CharacterSet complement() const;
  CharacterSet without(const CharacterSet& other) const;
  CharacterSet within(const CharacterSet& other) const;
  bool contains(uint32_t character) const;

  bool empty() const { return ranges_.empty(); }
  const std::vector<CharacterRange>& ranges() const { return ranges_; }

 private:
  std::vector<CharacterRange> ranges_;
};

// Kinds of bytes: so few that a byte can hold a set of them, and such that what patterns repeat
// ("[a-z]+", "\w*") is whole kinds.
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
