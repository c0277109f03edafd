// The properties of characters that WordPiece vocabularies go by; the tables are generated.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/text/character_ranges.h"

namespace lockstep {

// The canonical combining class of some characters; others have 0.
struct CombiningRange {
  uint32_t first;
  uint32_t last;
  uint8_t combining_class;
};

// A character's full canonical decomposition.
struct Decomposition {
  uint32_t code_point;
  std::string_view text;
};

// All ascend; but for `lower` nothing overlaps.
struct WordPieceTables {
  std::span<const CodePointRange> removed;  // control characters, private use, U+FFFD
  std::span<const CodePointRange> space;
  std::span<const CodePointRange> ideographs;  // each a word
  std::span<const CodePointRange> punctuation;
  std::span<const CodePointRange> accents;  // nonspacing marks
  std::span<const CaseRange> lower;         // but for U+0130, whose lower case is two characters
  std::span<const CombiningRange> combining;
  std::span<const Decomposition> decompositions;  // but for Hangul's
};

const WordPieceTables& word_piece_tables();

}  // namespace lockstep
