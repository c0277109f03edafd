// Turns the tokens of one generation into text as they come: never half a UTF-8 character.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"

namespace lockstep {

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

}  // namespace lockstep
