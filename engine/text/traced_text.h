// A text that knows which of its parts its maker did not write itself. A chat template's literals
// are its own; what it takes from a request is foreign, however it cuts and joins it.
#pragma once

#include <compare>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct TextRange {
  size_t begin = 0;  // bytes
  size_t end = 0;

  auto operator<=>(const TextRange&) const = default;
};

struct TracedText {
  TracedText() = default;
  TracedText(std::string content, bool is_foreign);

  void append(std::string_view part, bool is_foreign);
  void append(const TracedText& part) { append(part, 0, part.text.size()); }
  // Appends `bytes` bytes of `whole` from `begin` on, which must lie within it.
  void append(const TracedText& whole, size_t begin, size_t bytes);
  // Makes the text shorter.
  void truncate(size_t bytes);
  // Makes everything from `begin` to the end foreign.
  void mark_foreign(size_t begin);
  bool is_foreign() const { return !foreign.empty(); }  // in any part

  std::string text;
  std::vector<TextRange> foreign;  // ascending; none is empty, none touches another
};

// Whether a range shares bytes with one of `ranges`, which ascend and do not overlap.
bool overlaps(std::span<const TextRange> ranges, const TextRange& range);

}  // namespace lockstep
