// The earlier tokens that a token's attention looks back at.
#pragma once

#include <compare>
#include <cstddef>

namespace lockstep {

struct AttentionWindow {
  size_t tokens = 0;  // the last so many, its own included; 0: all

  // The first position that a token at `position` sees.
  size_t first_seen(size_t position) const {
    return tokens == 0 || tokens > position ? 0 : position + 1 - tokens;
  }

  // How many pages of `page_tokens` a sequence holds at most while it grows to `length` in passes
  // of at most `pass_tokens`: those that its next pass reads and writes.
  size_t most_pages(size_t length, size_t pass_tokens, size_t page_tokens) const {
    const size_t all = (length + page_tokens - 1) / page_tokens;
    if (tokens == 0) return all;
    // A run of positions that long touches one page more, where it begins within one.
    const size_t seen = (tokens + pass_tokens + page_tokens - 1) / page_tokens + 1;
    return seen < all ? seen : all;
  }

  auto operator<=>(const AttentionWindow&) const = default;
};

}  // namespace lockstep
