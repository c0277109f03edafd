#include "engine/text/special_tokens.h"

#include <algorithm>

namespace lockstep {

SpecialTokens::SpecialTokens(std::vector<std::pair<std::string, int32_t>> tokens)
    : sorted_(std::move(tokens)) {
  std::erase_if(sorted_, [](const auto& entry) { return entry.first.empty(); });
  std::sort(sorted_.begin(), sorted_.end());
  const auto last = std::unique(sorted_.begin(), sorted_.end(),
                                [](const auto& a, const auto& b) { return a.first == b.first; });
  sorted_.erase(last, sorted_.end());
  for (const auto& [text, token] : sorted_) {
    starts_[static_cast<uint8_t>(text[0])] = true;
    text_bytes_max_ = std::max(text_bytes_max_, text.size());
  }
}

std::optional<SpecialTokens::Match> SpecialTokens::find(std::string_view text, size_t from,
                                                        const Accepts& accepts) const {
  if (sorted_.empty()) return std::nullopt;
  for (size_t position = from; position < text.size(); ++position) {
    if (!starts_[static_cast<uint8_t>(text[position])]) continue;
    if (auto match = find_at(text, position, accepts)) return match;
  }
  return std::nullopt;
}

// Narrows the sorted texts down to those that share ever more bytes with the text.
std::optional<SpecialTokens::Match> SpecialTokens::find_at(std::string_view text, size_t position,
                                                           const Accepts& accepts) const {
  std::optional<Match> longest;
  auto first = sorted_.begin();
  auto last = sorted_.end();
  for (size_t depth = 0; first != last; ++depth) {
    if (first->first.size() == depth) {
      const Match match{position, depth, first->second};
      if (!accepts || accepts(match)) longest = match;
      ++first;  // texts are unique: the others in the range are longer
    }
    if (position + depth >= text.size()) break;
    const auto byte = static_cast<uint8_t>(text[position + depth]);
    const auto byte_of = [depth](const auto& entry) {
      return static_cast<uint8_t>(entry.first[depth]);
    };
    first =
        std::partition_point(first, last, [&](const auto& entry) { return byte_of(entry) < byte; });
    last = std::partition_point(first, last,
                                [&](const auto& entry) { return byte_of(entry) == byte; });
  }
  return longest;
}

}  // namespace lockstep
