#include "engine/text/text_stream.h"

#include "engine/text/utf8.h"

namespace lockstep {

TextStream::TextStream(const Tokenizer& tokenizer, bool skip_special, bool at_start)
    : tokenizer_(tokenizer),
      skip_special_(skip_special),
      strip_space_(at_start && tokenizer.strips_leading_space()) {}

std::string TextStream::push(TokenId token) {
  std::string_view bytes = tokenizer_.piece(token, !skip_special_);
  if (strip_space_ && !tokenizer_.piece(token, false).empty()) {
    if (bytes.starts_with(' ')) bytes.remove_prefix(1);
    strip_space_ = false;
  }
  held_.append(bytes);
  const size_t complete = complete_utf8_length(held_);
  std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, complete));
  held_.erase(0, complete);
  return text;
}

std::string TextStream::finish() {
  std::string text = replace_invalid_utf8(held_);
  held_.clear();
  return text;
}

}  // namespace lockstep
