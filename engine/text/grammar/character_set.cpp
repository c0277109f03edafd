#include "engine/text/grammar/character_set.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr uint32_t kCharacterMax = 0x10FFFF;
constexpr CharacterRange kSurrogates = {0xD800, 0xDFFF};

}  // namespace

CharacterSet::CharacterSet(std::initializer_list<CharacterRange> ranges) : ranges_(ranges) {
  normalize();
}

void CharacterSet::add(const CharacterSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
}

void CharacterSet::normalize() {
  std::vector<CharacterRange> given;
  for (const CharacterRange& range : ranges_) {
    const CharacterRange below = {range.low, std::min(range.high, kSurrogates.low - 1)};
    const CharacterRange above = {std::max(range.low, kSurrogates.high + 1), range.high};
    if (below.low <= below.high) given.push_back(below);
    if (above.low <= above.high) given.push_back(above);
  }
  std::ranges::sort(given, {}, &CharacterRange::low);
  ranges_.clear();
  for (const CharacterRange& range : given) {
    const bool joins =
        !ranges_.empty() &&
        (range.low <= ranges_.back().high + 1 ||
         (ranges_.back().high + 1 == kSurrogates.low && range.low == kSurrogates.high + 1));
    if (joins) {
      ranges_.back().high = std::max(ranges_.back().high, range.high);
    } else {
      ranges_.push_back(range);
    }
  }
}

CharacterSet CharacterSet::complement() const {
  CharacterSet sorted = *this;
  sorted.normalize();
  CharacterSet result;
  uint32_t next = 0;
  for (const CharacterRange& range : sorted.ranges_) {
    if (range.low > next) result.add(next, range.low - 1);
    next = range.high + 1;
  }
  if (next <= kCharacterMax) result.add(next, kCharacterMax);
  result.normalize();
  return result;
}

CharacterSet CharacterSet::within(const CharacterSet& other) const {
  CharacterSet outside = complement();
  outside.add(other.complement());
  return outside.complement();
}

CharacterSet CharacterSet::without(const CharacterSet& other) const {
  return within(other.complement());
}

bool CharacterSet::contains(uint32_t character) const {
  return std::ranges::any_of(ranges_, [&](const CharacterRange& range) {
    return range.low <= character && character <= range.high;
  });
}

}  // namespace lockstep
