// The tokens whose keys and values a drafter's own KV cache holds. Its pages have the numbers of
// the model's, and the model's cache knows nothing of it: a sequence finds pages that others have
// filled, gets pages that held something else, and has tokens rejected. So what a page holds is
// known by its tokens, and the scheduler need not say when a page changes hands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/token_id.h"

namespace lockstep {

// Hashes of a text up to each border of pages. Two texts of one hash may differ, once in 2^64 by
// chance: a draft is worse by that, and nothing else.
class TextBorders {
 public:
  // The text is `tokens` now: what it was, and more behind it.
  void grow(std::span<const TokenId> tokens, size_t page_tokens);
  size_t count() const { return hashes_.size(); }
  // The hash of all tokens before page `page`, which is less than count(). Never 0.
  uint64_t before(size_t page) const { return hashes_[page]; }

 private:
  std::vector<uint64_t> hashes_ = {1};
};

class DraftPages {
 public:
  // Takes 4 bytes for each token of all pages, which hold nothing.
  DraftPages(size_t page_count, size_t page_tokens);

  // How many of the text's tokens, from the first one on, have their keys and values in these
  // pages. The text's borders have grown to it.
  size_t known(std::span<const TokenId> text, const TextBorders& borders,
               std::span<const uint32_t> pages) const;
  // Keys and values of these tokens are written to the page, from place `begin` on, behind a text
  // of this hash. The page holds what is before them (known() says so); what it held behind is
  // lost.
  void write(uint32_t page, uint64_t before, size_t begin, std::span<const TokenId> tokens);
  // The same over several pages, those of a text from its first token on: from position `begin`.
  // The text's borders have grown to all of these pages' beginnings.
  void write_text(std::span<const uint32_t> pages, const TextBorders& borders, size_t begin,
                  std::span<const TokenId> tokens);
  // These pages have been handed out anew and hold nothing; they are to be cleared in memory.
  void clear(std::span<const uint32_t> pages);
  // Replaces `pages` by those that are to be cleared, each once, in the order of clear(). They no
  // longer are.
  void take_cleared(std::vector<uint32_t>& pages);

 private:
  struct Page {
    uint64_t before = 0;  // of the text before it; 0: it holds nothing
    uint64_t after = 0;   // of the text to its end, once it is full; else 0
    size_t count = 0;
  };
  std::span<TokenId> tokens_of(uint32_t page) {
    return std::span(tokens_).subspan(page * page_tokens_, page_tokens_);
  }
  std::span<const TokenId> tokens_of(uint32_t page) const {
    return std::span(tokens_).subspan(page * page_tokens_, page_tokens_);
  }

  size_t page_tokens_;
  std::vector<Page> pages_;
  std::vector<TokenId> tokens_;
  std::vector<uint32_t> cleared_;
  std::vector<bool> is_cleared_;  // by page: it is among them
};

}  // namespace lockstep
