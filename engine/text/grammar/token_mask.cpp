#include "engine/text/grammar/token_mask.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "engine/base/check.h"

namespace lockstep {

void TokenMask::clear() {
  std::ranges::fill(words_, 0);
  extra_.clear();
}

void TokenMask::allow(PlaceRange places) {
  if (places.begin >= places.end) return;
  const size_t first = places.begin / kWordBits;
  const size_t last = (places.end - 1) / kWordBits;
  const uint64_t from = ~uint64_t{0} << (places.begin % kWordBits);
  const uint64_t to = ~uint64_t{0} >> (kWordBits - 1 - (places.end - 1) % kWordBits);
  if (first == last) {
    words_[first] |= from & to;
    return;
  }
  words_[first] |= from;
  for (size_t word = first + 1; word < last; ++word) words_[word] = ~uint64_t{0};
  words_[last] |= to;
}

void TokenMask::allow(std::span<const uint64_t> words) {
  for (size_t index = 0; index < words_.size(); ++index) words_[index] |= words[index];
}

void TokenMask::allow_tokens(std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) {
    if (token >= 0 && static_cast<size_t>(token) < trie_->vocabulary_size()) {
      extra_.push_back(token);
    }
  }
}

size_t TokenMask::count() const {
  size_t count = 0;
  for (const uint64_t word : words_) count += static_cast<size_t>(std::popcount(word));
  return count;
}

template <typename Use>
void TokenMask::for_each_place(bool allowed, const Use& use) const {
  const size_t count = trie_->order().size();
  for (size_t index = 0; index < words_.size(); ++index) {
    for (uint64_t word = allowed ? words_[index] : ~words_[index]; word != 0; word &= word - 1) {
      const size_t place = index * kWordBits + static_cast<size_t>(std::countr_zero(word));
      if (place < count) use(place);
    }
  }
}

void TokenMask::apply(std::span<float> logits) const {
  CHECK(logits.size() == trie_->vocabulary_size(), "{} logits for a vocabulary of {}",
        logits.size(), trie_->vocabulary_size());
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  const auto value = [&](TokenId token) -> float& { return logits[static_cast<size_t>(token)]; };
  const auto order = trie_->order();
  kept_.clear();
  for (const TokenId token : extra_) kept_.push_back(value(token));
  // Whichever are fewer are touched one by one.
  const size_t allowed = count();
  if (allowed * 2 < order.size()) {
    for_each_place(true, [&](size_t place) { kept_.push_back(value(order[place])); });
    std::ranges::fill(logits, kForbidden);
    size_t next = extra_.size();
    for_each_place(true, [&](size_t place) { value(order[place]) = kept_[next++]; });
  } else {
    for_each_place(false, [&](size_t place) { value(order[place]) = kForbidden; });
    for (const TokenId token : trie_->others()) value(token) = kForbidden;
  }
  for (size_t index = 0; index < extra_.size(); ++index) value(extra_[index]) = kept_[index];
}

bool TokenMask::allows(TokenId token) const {
  if (std::ranges::find(extra_, token) != extra_.end()) return true;
  const uint32_t place = trie_->place(token);
  return place != TokenTrie::kNoPlace &&
         (words_[place / kWordBits] >> (place % kWordBits) & 1U) != 0;
}

}  // namespace lockstep
