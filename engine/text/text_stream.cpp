#include "engine/text/text_stream.h"

#include <algorithm>
#include <utility>

#include "engine/text/utf8.h"

namespace lockstep {

TextStream::TextStream(const Tokenizer& tokenizer, bool skip_special, bool at_start,
                       std::vector<TokenId> visible)
    : tokenizer_(tokenizer),
      skip_special_(skip_special),
      strip_space_(at_start && tokenizer.strips_leading_space()),
      visible_(std::move(visible)) {}

std::string_view TextStream::piece(TokenId token) const {
  const bool visible = !skip_special_ || std::ranges::find(visible_, token) != visible_.end();
  return tokenizer_.piece(token, visible);
}

std::string TextStream::push(TokenId token) {
  std::string_view bytes = piece(token);
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
