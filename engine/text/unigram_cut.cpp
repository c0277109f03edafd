#include "engine/text/unigram_cut.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/base/pause_point.h"
#include "engine/text/utf8.h"

namespace lockstep {

namespace {

constexpr size_t kCharactersPerPause = 32;  // some microseconds
constexpr size_t kPlacesPerPause = 4096;    // likewise
constexpr size_t kCharacterBytesMax = 4;
constexpr size_t kWaysMin = 64;
// Bytes before which nothing is followed back, or given back.
constexpr size_t kKeptBytes = 4096;

}  // namespace

UnigramCut::UnigramCut(const UnigramVocabulary& vocabulary, size_t tokens_max,
                       std::vector<TokenId>& tokens)
    : vocabulary_(vocabulary), tokens_max_(tokens_max), tokens_(tokens) {
  ways_.resize(kWaysMin);
  begin_text();
}

UnigramCut::~UnigramCut() {
  note_held_bytes(-static_cast<int64_t>(noted_bytes_));
}

void UnigramCut::begin_text() {
  text_.clear();
  last_.assign(1, kStart);
  settled_ = place_ = farthest_ = 0;
  next_look_ = kKeptBytes;
  tokens_before_ = tokens_.size();
  way(0) = {};
}

void UnigramCut::append(std::string_view text) {
  text_.append(text);
  last_.resize(text_.size() + 1, kNotReached);
  note_held();
  // Text that is not here yet may make a token longer.
  const size_t reach = std::max(vocabulary_.text_bytes_max, kCharacterBytesMax);
  go_on(text_.size() - std::min(text_.size(), reach));
}

void UnigramCut::finish() {
  go_on(text_.size());
  if (!is_full()) settle(text_.size());
  begin_text();
}

void UnigramCut::go_on(size_t end) {
  const uint64_t end_from_start = dropped_ + end;
  while (dropped_ + place_ < end_from_start) {
    if (++characters_ % kCharactersPerPause == 0) pause_point();
    if (place_ == farthest_) {
      settle(place_);
    } else if (place_ >= next_look_) {
      look_back();
    }
    if (is_full()) return;
    take_tokens();
  }
}

void UnigramCut::take_tokens() {
  const Way here = way(place_);
  const std::string_view rest = std::string_view(text_).substr(place_);
  const size_t character = decode_utf8(rest).size_bytes;
  bool is_token = false;
  vocabulary_.prefixes.for_each_prefix(rest, [&](size_t size_bytes, TokenId token) {
    is_token = is_token || size_bytes == character;
    const auto score = static_cast<double>(vocabulary_.scores[static_cast<size_t>(token)]);
    offer(token, here.score + score, here.tokens + 1);
  });
  if (!is_token) {
    const bool is_one = vocabulary_.bytes.empty();  // token, with those before it
    const size_t tokens = is_one ? (is_unknown(last_[place_]) ? 0 : 1) : character;
    offer(-static_cast<TokenId>(character), here.score + vocabulary_.unknown_score,
          here.tokens + tokens);
  }
  place_ += character;
}

size_t UnigramCut::size_of(TokenId last) const {
  return last < 0 ? static_cast<size_t>(-last)
                  : vocabulary_.texts[static_cast<size_t>(last)].size();
}

void UnigramCut::offer(TokenId last, double score, uint64_t tokens) {
  const size_t size_bytes = size_of(last);
  if (size_bytes >= ways_.size()) widen_ways(size_bytes);
  const size_t end = place_ + size_bytes;
  Way& best = way(end);
  if (last_[end] != kNotReached && !(score > best.score)) return;
  best = {score, tokens};
  last_[end] = last;
  farthest_ = std::max(farthest_, end);
}

void UnigramCut::widen_ways(size_t reach) {
  std::vector<Way> wider(std::bit_ceil(reach + 1));
  for (size_t place = place_; place <= farthest_; ++place) {
    wider[(dropped_ + place) & (wider.size() - 1)] = way(place);
  }
  ways_ = std::move(wider);
}

void UnigramCut::look_back() {
  // The ways that may go on, by their latest places; those that share a place are one.
  std::vector<bool> passes(farthest_ - settled_ + 1);
  size_t ways = 0;
  uint64_t least_tokens = std::numeric_limits<uint64_t>::max();
  for (size_t place = place_; place <= farthest_; ++place) {
    if (last_[place] == kNotReached) continue;
    passes[place - settled_] = true;
    least_tokens = std::min(least_tokens, way(place).tokens);
    ++ways;
  }
  size_t shared = farthest_;
  for (; !passes[shared - settled_] || ways > 1; --shared) {
    if (shared % kPlacesPerPause == 0) pause_point();
    if (!passes[shared - settled_]) continue;
    const size_t before = shared - size_of(last_[shared]) - settled_;
    if (passes[before]) --ways;
    passes[before] = true;
  }
  const bool is_too_much = tokens_before_ + least_tokens > tokens_max_;
  settle(is_too_much ? place_ : shared);
  next_look_ = place_ + std::max(kKeptBytes, place_ - settled_);
}

void UnigramCut::settle(size_t place) {
  const size_t first = tokens_.size();
  for (size_t end = place; end > settled_;) {
    const TokenId last = last_[end];
    const size_t begin = end - size_of(last);
    if (last >= 0) {
      tokens_.push_back(last);
    } else {
      const std::string_view character = std::string_view(text_).substr(begin, end - begin);
      emit_backwards(character, is_unknown(last_[begin]));
    }
    end = begin;
  }
  std::reverse(tokens_.begin() + static_cast<ptrdiff_t>(first), tokens_.end());
  settled_ = place;
  next_look_ = place + kKeptBytes;
  drop_settled();
}

void UnigramCut::emit_backwards(std::string_view character, bool follows_unknown) {
  if (vocabulary_.bytes.empty()) {
    if (!follows_unknown) tokens_.push_back(vocabulary_.unknown);
    return;
  }
  for (auto byte = character.rbegin(); byte != character.rend(); ++byte) {
    tokens_.push_back(vocabulary_.bytes[static_cast<uint8_t>(*byte)]);
  }
}

// In proportion to what is given back.
void UnigramCut::drop_settled() {
  if (settled_ < kKeptBytes || settled_ < text_.size() / 2) return;
  text_.erase(0, settled_);
  last_.erase(last_.begin(), last_.begin() + static_cast<ptrdiff_t>(settled_));
  dropped_ += settled_;
  place_ -= settled_;
  farthest_ -= settled_;
  next_look_ -= settled_;
  settled_ = 0;
}

void UnigramCut::note_held() {
  const size_t held =
      text_.capacity() + last_.capacity() * sizeof(TokenId) + ways_.capacity() * sizeof(Way);
  note_held_bytes(static_cast<int64_t>(held) - static_cast<int64_t>(noted_bytes_));
  noted_bytes_ = held;
}

}  // namespace lockstep
