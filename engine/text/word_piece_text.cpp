#include "engine/text/word_piece_text.h"

#include <algorithm>

#include "engine/text/utf8.h"
#include "engine/text/word_piece_table.h"

namespace lockstep {

namespace {

// Hangul syllables decompose by a formula (section 3.12 of the Unicode standard).
constexpr uint32_t kSyllables = 0xAC00;
constexpr uint32_t kSyllableCount = 11172;
constexpr uint32_t kLeading = 0x1100;
constexpr uint32_t kVowels = 0x1161;
constexpr uint32_t kVowelCount = 21;
constexpr uint32_t kTrailing = 0x11A7;  // one before the first: a syllable may have none
constexpr uint32_t kTrailingCount = 28;

constexpr uint32_t kCapitalIWithDot = 0x130;
constexpr uint32_t kDotAbove = 0x307;

constexpr bool is_ascii(uint32_t code_point) {
  return code_point < 0x80;
}

bool is_ascii_punctuation(uint32_t code_point) {
  const auto within = [code_point](uint32_t first, uint32_t last) {
    return code_point >= first && code_point <= last;
  };
  return within('!', '/') || within(':', '@') || within('[', '`') || within('{', '~');
}

bool is_removed(uint32_t code_point) {
  if (!is_ascii(code_point)) return contains(word_piece_tables().removed, code_point);
  const bool is_space = code_point == '\t' || code_point == '\n' || code_point == '\r';
  return (code_point < ' ' && !is_space) || code_point == 0x7F;
}

// `code_point` is not removed.
bool is_space(uint32_t code_point) {
  return is_ascii(code_point) ? code_point <= ' ' : contains(word_piece_tables().space, code_point);
}

bool is_punctuation(uint32_t code_point) {
  return is_ascii(code_point) ? is_ascii_punctuation(code_point)
                              : contains(word_piece_tables().punctuation, code_point);
}

uint8_t combining_class(uint32_t code_point) {
  const auto& ranges = word_piece_tables().combining;
  const auto after = std::ranges::upper_bound(ranges, code_point, {}, &CombiningRange::first);
  if (after == ranges.begin() || code_point > (after - 1)->last) return 0;
  return (after - 1)->combining_class;
}

uint32_t lower_case(uint32_t code_point) {
  if (is_ascii(code_point)) {
    return code_point >= 'A' && code_point <= 'Z' ? code_point - 'A' + 'a' : code_point;
  }
  const CaseRange* range = find_case(word_piece_tables().lower, code_point);
  if (range == nullptr) return code_point;
  return static_cast<uint32_t>(static_cast<int64_t>(code_point) + range->delta);
}

}  // namespace

void append_lower_case(uint32_t code_point, std::string& text) {
  append_utf8(code_point == kCapitalIWithDot ? 'i' : lower_case(code_point), text);
  if (code_point == kCapitalIWithDot) append_utf8(kDotAbove, text);
}

void WordPieceText::add(uint32_t code_point) {
  if (is_removed(code_point)) return;
  if (is_space(code_point)) return end_word();
  const bool is_word =
      !is_ascii(code_point) && contains(word_piece_tables().ideographs, code_point);
  if (is_word) end_word();
  if (rules_.strips_accents) {
    decompose(code_point);
  } else {
    append_final(code_point);
  }
  if (is_word) end_word();
}

void WordPieceText::end_word() {
  flush_marks();
  give_word();
}

void WordPieceText::decompose(uint32_t code_point) {
  if (is_ascii(code_point)) return append_part(code_point);
  if (code_point >= kSyllables && code_point < kSyllables + kSyllableCount) {
    const uint32_t index = code_point - kSyllables;
    const uint32_t trailing = index % kTrailingCount;
    append_part(kLeading + index / (kVowelCount * kTrailingCount));
    append_part(kVowels + index / kTrailingCount % kVowelCount);
    if (trailing != 0) append_part(kTrailing + trailing);
    return;
  }
  const auto& all = word_piece_tables().decompositions;
  const auto found = std::ranges::lower_bound(all, code_point, {}, &Decomposition::code_point);
  if (found == all.end() || found->code_point != code_point) return append_part(code_point);
  for (std::string_view rest = found->text; !rest.empty();) {
    const DecodedCharacter part = decode_utf8(rest);
    append_part(part.code_point);
    rest.remove_prefix(part.size_bytes);
  }
}

// Marks are put in the order of their classes, up to the next starter: an accent that is none stays
// in the way of others' order though it goes.
void WordPieceText::append_part(uint32_t code_point) {
  const bool is_accent = !is_ascii(code_point) && contains(word_piece_tables().accents, code_point);
  const uint8_t mark_class = is_ascii(code_point) ? 0 : combining_class(code_point);
  if (mark_class == 0) flush_marks();
  if (is_accent) return;
  if (mark_class == 0) {
    append_final(code_point);
  } else {
    marks_.emplace_back(mark_class, code_point);
  }
}

void WordPieceText::flush_marks() {
  std::ranges::stable_sort(marks_, {}, &std::pair<uint8_t, uint32_t>::first);
  for (const auto& mark : marks_) append_final(mark.second);
  marks_.clear();
}

void WordPieceText::append_final(uint32_t code_point) {
  if (rules_.lowers_case && code_point == kCapitalIWithDot) {
    append_to_word('i');
    return append_to_word(kDotAbove);
  }
  const uint32_t final = rules_.lowers_case ? lower_case(code_point) : code_point;
  const bool is_word = is_punctuation(final);
  if (is_word) give_word();
  append_to_word(final);
  if (is_word) give_word();
}

void WordPieceText::append_to_word(uint32_t code_point) {
  ++characters_;
  if (characters_ <= rules_.characters_max) append_utf8(code_point, word_);
}

void WordPieceText::give_word() {
  if (characters_ == 0) return;
  take_word_({word_, characters_});
  word_.clear();
  characters_ = 0;
}

}  // namespace lockstep
