// A set of Unicode scalar values (no surrogates), as sorted ranges.
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

}  // namespace lockstep
