#include "engine/drafting/earlier_answers.h"

#include <algorithm>
#include <array>
#include <bit>
#include <new>
#include <utility>

#include "engine/base/check.h"

namespace lockstep {

AnswerWindow::AnswerWindow(size_t tokens)
    : mask_(static_cast<uint32_t>(tokens) - 1), tokens_(tokens), before_(tokens), latest_(tokens) {
  CHECK(std::has_single_bit(tokens) && tokens > kGram && tokens <= size_t{1} << 31U,
        "a window of {} tokens", tokens);
}

bool AnswerWindow::holds(uint32_t place) const {
  const uint32_t distance = end_ - place;
  return distance > 0 && distance <= held_;
}

void AnswerWindow::add(TokenId token) {
  const uint32_t place = end_++;
  held_ = std::min(held_ + 1, mask_ + 1);
  tokens_[at(place)] = token;
  before_[at(place)] = 0;
  if (held_ < kGram) return;
  std::array<TokenId, kGram> gram{};
  for (uint32_t index = 0; index < kGram; ++index) {
    gram[index] = tokens_[at(place + 1 - static_cast<uint32_t>(kGram) + index)];
  }
  uint32_t& latest = latest_[hash_of_gram(gram) & mask_];
  if (holds(latest)) before_[at(place)] = place - latest;
  latest = place;
}

// How many tokens up to the place are the text's last ones.
size_t AnswerWindow::match_length(std::span<const TokenId> text, uint32_t place) const {
  const size_t most = std::min(kMatchMost, text.size());
  size_t length = 0;
  for (; length < most; ++length) {
    const uint32_t other = place - static_cast<uint32_t>(length);
    if (!holds(other) || tokens_[at(other)] != text[text.size() - 1 - length]) break;
  }
  return length;
}

size_t AnswerWindow::draft(std::span<const TokenId> text, std::optional<AnswerPlace>& place,
                           std::span<TokenId> drafts) const {
  AnswerPlace best;
  if (place) {
    best.place = place->place + static_cast<uint32_t>(text.size() - place->text_tokens);
    best.match = match_length(text, best.place);
  }
  place.reset();
  if (text.size() < kGram) return 0;
  uint32_t other = latest_[hash_of_gram(text.last<kGram>()) & mask_];
  size_t tried = 0;
  for (size_t visit = 0; visit < kVisitsMost && tried < kCandidatesMost; ++visit) {
    if (!holds(other)) break;
    const size_t length = match_length(text, other);
    if (length > best.match) best = {.place = other, .match = length};
    tried += length >= kGram ? 1 : 0;  // else it is another gram of the slot
    const uint32_t step = before_[at(other)];
    if (step == 0) break;
    other -= step;
  }
  if (best.match < kGram) return 0;
  best.text_tokens = text.size();
  place = best;
  size_t count = 0;
  for (uint32_t from = best.place + 1; count < drafts.size() && holds(from); ++from, ++count) {
    if (tokens_[at(from)] == kBetweenTexts) break;
    drafts[count] = tokens_[at(from)];
  }
  return count;
}

void EarlierAnswers::tell(const AnswerScope& scope, std::span<const TokenId> text) noexcept {
  text = text.last(std::min(text.size(), limits_.tokens - 1));
  if (text.size() <= kGram || waiting_tokens_ + text.size() > limits_.tokens) return;
  try {
    waiting_.push_back({scope, {text.begin(), text.end()}});
    waiting_tokens_ += text.size();
  } catch (const std::bad_alloc&) {  // forgotten
  }
}

void EarlierAnswers::learn(size_t most) noexcept {
  while (most > 0 && !waiting_.empty()) {
    Waiting& first = waiting_.front();
    const auto piece = std::span(std::as_const(first.text)).subspan(first.learned);
    const auto taken = piece.first(std::min(piece.size(), most));
    try {
      AnswerWindow& window = window_of(first.scope);
      for (const TokenId token : taken) window.add(token);
      if (taken.size() == piece.size()) window.add(kBetweenTexts);
    } catch (const std::bad_alloc&) {
      waiting_tokens_ -= piece.size();
      waiting_.pop_front();
      continue;
    }
    first.learned += taken.size();
    waiting_tokens_ -= taken.size();
    most -= taken.size();
    if (taken.size() == piece.size()) waiting_.pop_front();
  }
}

AnswerWindow& EarlierAnswers::window_of(const AnswerScope& scope) {
  auto found = windows_.find(scope);
  if (found == windows_.end()) {
    while (windows_.size() >= limits_.scopes) drop_scope();
    found = windows_.emplace(scope, Window{AnswerWindow(limits_.tokens)}).first;
  }
  found->second.last_learned = ++learned_;
  return found->second.tokens;
}

// Scopes of a tenant lie side by side.
void EarlierAnswers::drop_scope() {
  auto gone = windows_.begin();
  size_t most = 0;
  for (auto begin = windows_.begin(); begin != windows_.end();) {
    size_t count = 0;
    auto oldest = begin;
    auto end = begin;
    for (; end != windows_.end() && end->first.tenant == begin->first.tenant; ++end, ++count) {
      if (end->second.last_learned < oldest->second.last_learned) oldest = end;
    }
    const bool is_older = oldest->second.last_learned < gone->second.last_learned;
    if (count > most || (count == most && is_older)) gone = oldest;
    most = std::max(most, count);
    begin = end;
  }
  windows_.erase(gone);
}

size_t EarlierAnswers::draft(const AnswerScope& scope, std::span<const TokenId> text,
                             std::optional<AnswerPlace>& place, std::span<TokenId> drafts) const {
  const auto found = windows_.find(scope);
  if (found == windows_.end()) {
    place.reset();
    return 0;
  }
  return found->second.tokens.draft(text, place, drafts);
}

size_t EarlierAnswers::memory_bytes() const {
  size_t bytes = windows_.size() * AnswerWindow::bytes(limits_.tokens);
  for (const Waiting& one : waiting_) bytes += one.text.capacity() * sizeof(TokenId);
  return bytes;
}

}  // namespace lockstep
