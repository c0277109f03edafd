#include "engine/text/token_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>

#include "engine/base/check.h"

namespace lockstep {

namespace {

// Odd constants with well mixed bits, from the digits of pi.
constexpr uint64_t kMixA = 0x243F6A8885A308D3;
constexpr uint64_t kMixB = 0x13198A2E03707345;

uint64_t random_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32U) | device();
}

// The folded 128-bit product: every bit of both factors reaches every bit of the result.
uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64U);
}

uint32_t hash_text(std::string_view text, uint64_t seed) {
  uint64_t state = seed ^ mix(text.size() ^ kMixB, seed | 1U);
  while (text.size() > 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data(), 8);
    state = mix(state ^ word, seed ^ kMixA);
    text.remove_prefix(8);
  }
  uint64_t word = 0;
  if (!text.empty()) std::memcpy(&word, text.data(), text.size());
  state = mix(state ^ word, seed ^ kMixA);
  return static_cast<uint32_t>(mix(state ^ kMixB, kMixA));
}

// At most half full, so that a search ends after a step or two.
size_t slot_count(size_t count) {
  return std::bit_ceil(std::max<size_t>(count * 2, 2));
}

}  // namespace

TokenIndex::TokenIndex(size_t count)
    : seed_(random_seed()), mask_(slot_count(count) - 1), slots_(mask_ + 1) {}

size_t TokenIndex::find_slot(std::string_view text, uint32_t hash) const {
  size_t index = hash & mask_;
  while (slots_[index].token >= 0) {
    if (slots_[index].hash == hash && slots_[index].text == text) break;
    index = (index + 1) & mask_;
  }
  return index;
}

void TokenIndex::insert(std::string_view text, int32_t token) {
  CHECK(token >= 0, "token {} has no place in an index", token);
  const uint32_t hash = hash_text(text, seed_);
  Slot& slot = slots_[find_slot(text, hash)];
  if (slot.token >= 0) return;
  slot = {text, hash, token};
  text_bytes_max_ = std::max(text_bytes_max_, text.size());
}

int32_t TokenIndex::find(std::string_view text) const {
  if (text.size() > text_bytes_max_) return -1;
  return slots_[find_slot(text, hash_text(text, seed_))].token;
}

MergeIndex::MergeIndex(size_t count)
    : seed_(random_seed()), mask_(slot_count(count) - 1), slots_(mask_ + 1) {}

size_t MergeIndex::find_slot(uint64_t key) const {
  size_t index = mix(key ^ seed_, kMixA) & mask_;
  while (slots_[index].merge.token >= 0 && slots_[index].key != key) index = (index + 1) & mask_;
  return index;
}

namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32U) | static_cast<uint32_t>(right);
}

}  // namespace

void MergeIndex::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = pair_key(left, right);
  Slot& slot = slots_[find_slot(key)];
  if (slot.merge.token < 0) slot = {key, merge};
}

MergeIndex::Merge MergeIndex::find(int32_t left, int32_t right) const {
  return slots_[find_slot(pair_key(left, right))].merge;
}

namespace {

// How many bytes two texts begin with alike.
size_t shared_bytes(std::string_view a, std::string_view b) {
  const auto differs = std::ranges::mismatch(a, b);
  return static_cast<size_t>(differs.in1 - a.begin());
}

}  // namespace

PrefixIndex::PrefixIndex(std::vector<std::pair<std::string_view, int32_t>> tokens) {
  std::erase_if(tokens, [](const auto& token) { return token.first.empty(); });
  std::sort(tokens.begin(), tokens.end());
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  tokens.erase(std::unique(tokens.begin(), tokens.end(), same), tokens.end());
  // A node's texts: a range of `tokens` that share their first `depth` bytes.
  struct Texts {
    size_t begin, end, depth;
  };
  std::vector<Texts> texts = {{0, tokens.size(), 0}};
  for (size_t node = 0; node < nodes_.size(); ++node) {
    Texts own = texts[node];
    // The shortest of them is the node's own.
    if (own.begin < own.end && tokens[own.begin].first.size() == own.depth) {
      nodes_[node].token = tokens[own.begin].second;
      ++own.begin;
    }
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    const auto byte_of = [&](const auto& token) {
      return static_cast<uint8_t>(token.first[own.depth]);
    };
    const auto at = [&](size_t index) { return tokens.begin() + static_cast<ptrdiff_t>(index); };
    for (size_t begin = own.begin; begin < own.end;) {
      const std::string_view first = tokens[begin].first;
      const auto next =
          std::ranges::upper_bound(at(begin), at(own.end), byte_of(tokens[begin]), {}, byte_of);
      const auto end = static_cast<size_t>(next - tokens.begin());
      // Sorted: what the first and the last share, all do.
      const size_t depth = shared_bytes(first, tokens[end - 1].first);
      nodes_.push_back({.rest = first.substr(own.depth + 1, depth - own.depth - 1)});
      bytes_.push_back(byte_of(tokens[begin]));
      texts.push_back({begin, end, depth});
      begin = end;
    }
    nodes_[node].child_count = static_cast<uint32_t>(nodes_.size()) - nodes_[node].first_child;
  }
  nodes_.shrink_to_fit();
  bytes_.shrink_to_fit();
}

}  // namespace lockstep
