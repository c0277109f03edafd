// Unicode's properties of characters, as ranges; the tables are generated.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/text/character_ranges.h"

namespace lockstep::jinja {

using CharacterRange = CodePointRange;

// A character that maps to several.
struct LongCase {
  uint32_t code_point;
  std::string_view text;
};

struct CaseTable {
  std::span<const CaseRange> ranges;  // by first; ranges of different deltas may interleave
  std::span<const LongCase> several;
};

// Ranges ascend and do not overlap, each.
struct CharacterTables {
  std::span<const CharacterRange> alphabetic;
  std::span<const CharacterRange> decimal;
  std::span<const CharacterRange> digit;
  std::span<const CharacterRange> numeric;
  std::span<const CharacterRange> printable;
  std::span<const CharacterRange> lower;
  std::span<const CharacterRange> upper;
  CaseTable to_upper;
  CaseTable to_lower;
  CaseTable to_title;  // only where it differs from to_upper
};

const CharacterTables& character_tables();

}  // namespace lockstep::jinja
