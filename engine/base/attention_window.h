// The earlier tokens that a token's attention looks back at.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <span>

namespace lockstep {

struct AttentionWindow {
  size_t tokens = 0;   // the last so many, its own included; 0: all
  size_t section = 0;  // of them those of its own section of so many; 0: there are no sections

  bool sees_all() const { return tokens == 0 && section == 0; }

  // The first position that a token at `position` sees.
  size_t first_seen(size_t position) const {
    const size_t in_window = tokens == 0 || tokens > position ? 0 : position + 1 - tokens;
    const size_t in_section = section == 0 ? 0 : position - position % section;
    return std::max(in_window, in_section);
  }

  // How many pages of `page_tokens` a sequence holds at most while it grows to `length` in passes
  // of at most `pass_tokens`: those that its next pass reads and writes.
  size_t most_pages(size_t length, size_t pass_tokens, size_t page_tokens) const {
    const size_t all = (length + page_tokens - 1) / page_tokens;
    if (sees_all()) return all;
    const size_t seen = tokens == 0 || section == 0 ? tokens + section : std::min(tokens, section);
    // A run of positions that long touches one page more, where it begins within one.
    return std::min(all, (seen + pass_tokens + page_tokens - 1) / page_tokens + 1);
  }

  auto operator<=>(const AttentionWindow&) const = default;
};

// The same of all groups of layers together, one window for each.
inline size_t most_pages(std::span<const AttentionWindow> windows, size_t length,
                         size_t pass_tokens, size_t page_tokens) {
  size_t pages = 0;
  for (const AttentionWindow& window : windows) {
    pages += window.most_pages(length, pass_tokens, page_tokens);
  }
  return pages;
}

}  // namespace lockstep
