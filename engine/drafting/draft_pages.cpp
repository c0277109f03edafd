#include "engine/drafting/draft_pages.h"

#include <algorithm>

#include "engine/base/check.h"

namespace lockstep {
namespace {

// Each step is a bijection of the hash for any token, and mixes all bits (the finalizer of
// splitmix64).
uint64_t hash_behind(uint64_t hash, std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) {
    hash += 0x9e3779b97f4a7c15U + static_cast<uint32_t>(token);
    hash = (hash ^ (hash >> 30U)) * 0xbf58476d1ce4e5b9U;
    hash = (hash ^ (hash >> 27U)) * 0x94d049bb133111ebU;
    hash ^= hash >> 31U;
  }
  return std::max<uint64_t>(hash, 1);
}

}  // namespace

void TextBorders::grow(std::span<const TokenId> tokens, size_t page_tokens) {
  while (hashes_.size() * page_tokens <= tokens.size()) {
    const size_t begin = (hashes_.size() - 1) * page_tokens;
    hashes_.push_back(hash_behind(hashes_.back(), tokens.subspan(begin, page_tokens)));
  }
}

DraftPages::DraftPages(size_t page_count, size_t page_tokens)
    : page_tokens_(page_tokens),
      pages_(page_count),
      tokens_(page_count * page_tokens),
      is_cleared_(page_count) {
  cleared_.reserve(page_count);
}

size_t DraftPages::known(std::span<const TokenId> text, const TextBorders& borders,
                         std::span<const uint32_t> pages) const {
  size_t known = 0;
  for (size_t index = 0; index < pages.size() && known < text.size(); ++index) {
    const Page& page = pages_[pages[index]];
    if (index >= borders.count() || page.before != borders.before(index)) break;
    if (page.after != 0 && index + 1 < borders.count() && page.after == borders.before(index + 1)) {
      known += page_tokens_;
      continue;
    }
    const auto held = tokens_of(pages[index]).first(page.count);
    const auto rest = text.subspan(known);
    const auto differing = std::ranges::mismatch(held, rest).in1;
    return known + static_cast<size_t>(differing - held.begin());
  }
  return known;
}

void DraftPages::write(uint32_t page, uint64_t before, size_t begin,
                       std::span<const TokenId> tokens) {
  CHECK(begin + tokens.size() <= page_tokens_, "tokens {} to {} of a page of {}", begin,
        begin + tokens.size(), page_tokens_);
  Page& held = pages_[page];
  CHECK(begin == 0 || (held.before == before && begin <= held.count),
        "page {} is written from token {} on, and what is before is not there", page, begin);
  std::ranges::copy(tokens, tokens_of(page).begin() + static_cast<std::ptrdiff_t>(begin));
  held = {.before = before, .after = 0, .count = begin + tokens.size()};
  if (held.count == page_tokens_) held.after = hash_behind(before, tokens_of(page));
}

void DraftPages::write_text(std::span<const uint32_t> pages, const TextBorders& borders,
                            size_t begin, std::span<const TokenId> tokens) {
  while (!tokens.empty()) {
    const size_t index = begin / page_tokens_;
    const size_t place = begin % page_tokens_;
    const size_t count = std::min(tokens.size(), page_tokens_ - place);
    write(pages[index], borders.before(index), place, tokens.first(count));
    tokens = tokens.subspan(count);
    begin += count;
  }
}

void DraftPages::clear(std::span<const uint32_t> pages) {
  for (const uint32_t page : pages) {
    pages_[page] = {};
    if (is_cleared_[page]) continue;
    is_cleared_[page] = true;
    cleared_.push_back(page);
  }
}

void DraftPages::take_cleared(std::vector<uint32_t>& pages) {
  pages.assign(cleared_.begin(), cleared_.end());
  for (const uint32_t page : cleared_) is_cleared_[page] = false;
  cleared_.clear();
}

}  // namespace lockstep
