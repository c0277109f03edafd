// Unicode's characters in ranges, as generated tables have them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace lockstep {

// Every `step`th character from first to last.
struct CodePointRange {
  uint32_t first;
  uint32_t last;
  uint32_t step;
};

// As CodePointRange; the mapped character is `delta` further.
struct CaseRange {
  uint32_t first;
  uint32_t last;
  uint32_t step;
  int32_t delta;
};

// `ranges` ascend and do not overlap.
inline bool contains(std::span<const CodePointRange> ranges, uint32_t code_point) {
  const auto after = std::ranges::upper_bound(ranges, code_point, {}, &CodePointRange::first);
  if (after == ranges.begin()) return false;
  const CodePointRange& range = *(after - 1);
  return code_point <= range.last && (code_point - range.first) % range.step == 0;
}

// The range that a character is in, or null. `ranges` ascend by their first characters; those of
// one mapping may interleave where letters alternate, but never more than a few deep.
inline const CaseRange* find_case(std::span<const CaseRange> ranges, uint32_t code_point) {
  auto after = std::ranges::upper_bound(ranges, code_point, {}, &CaseRange::first);
  constexpr int kDeepest = 8;
  for (int tried = 0; tried < kDeepest && after != ranges.begin(); ++tried) {
    --after;
    if (code_point <= after->last && (code_point - after->first) % after->step == 0) {
      return &*after;
    }
  }
  return nullptr;
}

}  // namespace lockstep
