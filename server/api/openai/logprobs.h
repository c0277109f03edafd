// Log-probabilities in OpenAI's two shapes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/json.h"
#include "engine/engine.h"

namespace lockstep {

// The log-probabilities of one choice of /v1/completions: four parallel arrays, one entry per
// token. A token that is no whole text is written "bytes:\xe2\x82", as OpenAI does. text_offset
// counts characters.
class LegacyLogprobs {
 public:
  // `echo`: the text starts with the prompt, whose first space a SentencePiece vocabulary makes up.
  LegacyLogprobs(const Tokenizer& tokenizer, bool echo);

  // The tokens of one piece of the answer; offsets go on from the piece before.
  Json take(const Output& output, uint32_t alternatives);

 private:
  const Tokenizer& tokenizer_;
  bool strip_space_;       // still to be taken off the first ordinary token of the prompt
  int64_t character_ = 0;  // where the next token's text starts
};

// The log-probabilities of one choice of a chat: {"content":[…],"refusal":null}, without the token
// that ended it.
Json chat_logprobs(const Tokenizer& tokenizer, const Output& output);

// A log-probability as JSON can hold it: OpenAI's -9999 stands for minus infinity.
double finite_logprob(float logprob);

// How a token of these bytes is written in the legacy shape.
std::string legacy_token_text(std::string_view bytes);

}  // namespace lockstep
