// The text of one generation as it comes: from tokens to characters, and up to a stop string.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"

namespace lockstep {

// Turns tokens into text: never half a UTF-8 character.
class TextStream {
 public:
  // `skip_special`: control tokens give no text. `at_start`: the generated text starts a text of
  // its own, so that a SentencePiece vocabulary's first space is taken off (not so after a prompt).
  // `visible`: control tokens that give text even so. The tokenizer must outlive this.
  TextStream(const Tokenizer& tokenizer, bool skip_special, bool at_start,
             std::vector<TokenId> visible = {});

  // The bytes that a token of this text decodes to; may be half a character.
  std::string_view piece(TokenId token) const;

  // Adds a token; returns the characters that are complete now. Bytes that can never become valid
  // UTF-8 come out as U+FFFD, one per maximal invalid part (the WHATWG rule).
  std::string push(TokenId token);

  // The end: what is held back comes out, an unfinished character as U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  bool strip_space_;
  std::vector<TokenId> visible_;
  std::string held_;  // the start of a character that is not complete yet
};

// Finds the first of several stop strings in a text that comes in pieces, also across their
// borders, and holds back only what may still become one.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // empty strings are ignored

  struct Progress {
    std::string released;           // text that is certainly before any stop
    std::optional<size_t> matched;  // index of the stop string that was found: the end
  };
  // After a match nothing more may be pushed. Among stops that end at the same byte the longest
  // wins; otherwise the one that is complete first.
  Progress push(std::string_view text);

  // The end without a match: what was held back.
  std::string finish();

 private:
  std::vector<std::string> stops_;
  std::string held_;
};

}  // namespace lockstep
