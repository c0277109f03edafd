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

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

StopMatcher::Progress StopMatcher::push(std::string_view text) {
  std::string pending = std::move(held_);
  const size_t searched = pending.size();  // no stop ends in what was held back
  pending.append(text);
  held_.clear();
  for (size_t end = searched + 1; end <= pending.size(); ++end) {
    const std::string_view so_far = std::string_view(pending).substr(0, end);
    std::optional<size_t> longest;
    for (size_t index = 0; index < stops_.size(); ++index) {
      const std::string& stop = stops_[index];
      if (stop.empty() || !so_far.ends_with(stop)) continue;
      if (!longest || stop.size() > stops_[*longest].size()) longest = index;
    }
    if (longest) {
      pending.resize(end - stops_[*longest].size());
      return {std::move(pending), longest};
    }
  }
  size_t kept = 0;  // the longest end of `pending` that is the start of a stop
  for (const std::string& stop : stops_) {
    if (stop.empty()) continue;
    for (size_t size = std::min(stop.size() - 1, pending.size()); size > kept; --size) {
      if (pending.ends_with(std::string_view(stop).substr(0, size))) kept = size;
    }
  }
  held_ = pending.substr(pending.size() - kept);
  pending.resize(pending.size() - kept);
  return {std::move(pending), std::nullopt};
}

std::string StopMatcher::finish() {
  return std::exchange(held_, {});
}

}  // namespace lockstep
