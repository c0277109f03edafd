#include "engine/drafting/ngram_drafter.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

namespace lockstep {

NgramDrafter::NgramDrafter(size_t tokens)
    : latest_(std::bit_ceil(std::clamp(tokens, kLeastSlots, kTokensMost)), 0) {}

void NgramDrafter::expect(std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) append(token);
  expects_ = expects_ || !tokens.empty();
}

void NgramDrafter::add(std::span<const TokenId> tokens) {
  if (std::exchange(expects_, false)) append(kBetweenTexts);
  for (const TokenId token : tokens) append(token);
}

void NgramDrafter::append(TokenId token) {
  full_ = full_ || text_.size() == kTokensMost;
  if (full_) return;
  if (source_ && text_[*source_ + 1] == token) {
    ++*source_;
  } else {
    source_.reset();
  }
  text_.push_back(token);
  before_.push_back(0);
  if (text_.size() > latest_.size()) {
    grow();
  } else {
    link(text_.size() - 1);
  }
}

// The table has a place for each token, so chains stay short unless grams repeat.
void NgramDrafter::grow() {
  latest_.assign(2 * latest_.size(), 0);
  for (size_t end = 0; end < text_.size(); ++end) link(end);
}

size_t NgramDrafter::slot(size_t end) const {
  const auto gram = std::span(text_).subspan(end + 1 - kGram).first<kGram>();
  return hash_of_gram(gram) & (latest_.size() - 1);
}

void NgramDrafter::link(size_t end) {
  if (end + 1 < kGram) return;
  uint32_t& latest = latest_[slot(end)];
  before_[end] = latest;
  latest = static_cast<uint32_t>(end + 1);
}

// How many tokens up to `end` are the text's last ones.
size_t NgramDrafter::match_length(size_t end) const {
  const size_t most = std::min(kMatchMost, end + 1);
  size_t length = 0;
  while (length < most && text_[end - length] == text_[text_.size() - 1 - length] &&
         text_[end - length] != kBetweenTexts) {
    ++length;
  }
  return length;
}

size_t NgramDrafter::draft(std::span<TokenId> drafts) {
  if (full_ || text_.size() <= kGram) return 0;
  // A source that is still followed is kept unless another one repeats more.
  size_t longest = source_ ? match_length(*source_) : 0;
  if (longest < kGram) source_.reset();
  size_t tried = 0;
  uint32_t place = before_.back();
  for (size_t visit = 0; place != 0 && visit < kVisitsMost && tried < kCandidatesMost; ++visit) {
    const size_t end = place - 1;
    const size_t length = match_length(end);
    place = before_[end];
    if (length < kGram) continue;  // another gram of the slot
    ++tried;
    if (length <= longest) continue;
    longest = length;
    source_ = end;
  }
  if (!source_) return 0;
  // Behind the text's end it goes on with the draft itself: a circle.
  size_t count = 0;
  for (size_t from = *source_ + 1; count < drafts.size(); ++from, ++count) {
    const TokenId token = from < text_.size() ? text_[from] : drafts[from - text_.size()];
    if (token == kBetweenTexts) break;
    drafts[count] = token;
  }
  return count;
}

std::unique_ptr<Drafter> make_ngram_drafter(size_t tokens) {
  return std::make_unique<NgramDrafter>(tokens);
}

size_t NgramDrafter::memory_bytes() const {
  return text_.capacity() * sizeof(TokenId) +
         (before_.capacity() + latest_.capacity()) * sizeof(uint32_t);
}

}  // namespace lockstep
