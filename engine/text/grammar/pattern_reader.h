// The common part of the readers of regular expressions and of GBNF: a text read character by
// character, and the numbers in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/text/grammar/character_set.h"
#include "engine/text/grammar/draft.h"

namespace lockstep {

class PatternReader {
 public:
  // `text` must be valid UTF-8; both must outlive this.
  PatternReader(GrammarDraft& draft, std::string_view text) : draft_(draft), text_(text) {}

  bool at_end() const { return position_ >= text_.size(); }
  size_t position() const { return position_; }
  std::string_view rest() const { return text_.substr(position_); }
  // The next byte, 0 at the end.
  char peek(size_t ahead = 0) const {
    return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0';
  }
  bool take(std::string_view expected);
  void skip(size_t bytes) { position_ += bytes; }
  void go_back(size_t position) { position_ = position; }
  uint32_t take_character();
  // Takes `digits` hexadecimal digits; fails the draft if they are not there.
  uint32_t take_hex(size_t digits);
  // Adds to the set of a character class, within the draft's budget: once that is spent the draft
  // has failed, and nothing is added.
  void collect(const CharacterSet& more, CharacterSet& set);
  void collect(uint32_t low, uint32_t high, CharacterSet& set);
  struct Counts {
    uint32_t min = 0;
    uint32_t max = 0;
  };
  bool at_quantifier() const;  // one of * + ? {
  // * + ? {m} {m,} or {m,n}; nothing, and no step, if none comes next. A brace that begins none of
  // them fails the draft, with `advice` behind the reason.
  std::optional<Counts> take_quantifier(std::string_view advice = {});

  // Puts the byte's number before the message.
  template <typename... Arguments>
  void fail(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    draft_.fail("at byte {}: {}", position_,
                fmt::format(format, std::forward<Arguments>(arguments)...));
  }
  bool failed() const { return draft_.failed(); }
  GrammarDraft& draft() { return draft_; }

 private:
  std::optional<uint64_t> take_number();  // decimal; saturates
  std::optional<Counts> take_counts();    // from the brace on; no step if they are none

  GrammarDraft& draft_;
  std::string_view text_;
  size_t position_ = 0;
};

}  // namespace lockstep
