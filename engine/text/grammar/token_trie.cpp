#include "engine/text/grammar/token_trie.h"

#include <algorithm>

namespace lockstep {
namespace {

// The place within a character of a text that is read byte by byte.
enum Place : uint8_t {
  kBorder,
  kOneMore,
  kTwoMore,
  kThreeMore,
  kAfterE0,
  kAfterED,
  kAfterF0,
  kAfterF4,
  kAfterE2,
  kAfterE280,  // what follows may be the line or the paragraph separator
  kBroken,
};

bool is_within(uint8_t byte, uint8_t low, uint8_t high) {
  return low <= byte && byte <= high;
}

Place after_lead(uint8_t byte) {
  if (is_within(byte, 0x20, 0x7E)) return byte == '"' || byte == '\\' ? kBroken : kBorder;
  switch (byte) {
    case 0xE0:
      return kAfterE0;
    case 0xE2:
      return kAfterE2;
    case 0xED:
      return kAfterED;
    case 0xF0:
      return kAfterF0;
    case 0xF4:
      return kAfterF4;
    default:
      break;
  }
  if (is_within(byte, 0xC2, 0xDF)) return kOneMore;
  if (is_within(byte, 0xE1, 0xEF)) return kTwoMore;
  return is_within(byte, 0xF1, 0xF3) ? kThreeMore : kBroken;
}

Place next_place(Place place, uint8_t byte) {
  if (place == kBorder) return after_lead(byte);
  if (!is_within(byte, 0x80, 0xBF)) return kBroken;
  switch (place) {
    case kOneMore:
      return kBorder;
    case kTwoMore:
      return kOneMore;
    case kThreeMore:
      return kTwoMore;
    case kAfterE0:
      return byte >= 0xA0 ? kOneMore : kBroken;
    case kAfterED:
      return byte <= 0x9F ? kOneMore : kBroken;
    case kAfterF0:
      return byte >= 0x90 ? kTwoMore : kBroken;
    case kAfterF4:
      return byte <= 0x8F ? kTwoMore : kBroken;
    case kAfterE2:
      return byte == 0x80 ? kAfterE280 : kOneMore;
    case kAfterE280:
      return byte == 0xA8 || byte == 0xA9 ? kBroken : kBorder;
    default:
      return kBroken;
  }
}

}  // namespace

TokenTrie::TokenTrie(const Tokenizer& tokenizer, size_t vocabulary_size)
    : vocabulary_size_(vocabulary_size),
      texts_(vocabulary_size),
      places_(vocabulary_size, kNoPlace) {
  for (size_t index = 0; index < vocabulary_size; ++index) {
    const auto token = static_cast<TokenId>(index);
    const std::string_view text = tokenizer.piece(token, /*special=*/false);
    const bool is_control = text.empty() && !tokenizer.piece(token, /*special=*/true).empty();
    const bool is_foreign = text.find(kControlByte) != std::string_view::npos;
    if (tokenizer.ends_generation(token) || is_foreign || text.size() > kTokenBytesMax ||
        (text.empty() && !is_control)) {
      others_.push_back(token);
    } else {
      texts_[index] = is_control ? control_.emplace_back(control_path(token)) : text;
      order_.push_back(token);
    }
  }
  std::ranges::sort(order_, [this](TokenId left, TokenId right) {
    const int order = text(left).compare(text(right));
    return order != 0 ? order < 0 : left < right;
  });
  for (uint32_t place = 0; place < order_.size(); ++place) {
    places_[static_cast<size_t>(order_[place])] = place;
  }
  add_nodes();
  find_below();
}

std::string TokenTrie::control_path(TokenId token) {
  constexpr int kBytes = sizeof(TokenId);
  std::string path(1, kControlByte);
  for (int byte = kBytes; byte-- > 0;) {
    path += static_cast<char>(static_cast<uint32_t>(token) >> (8 * byte));
  }
  return path;
}

std::string_view TokenTrie::text(TokenId token) const {
  const auto index = static_cast<size_t>(token);
  return token >= 0 && index < texts_.size() ? texts_[index] : std::string_view();
}

void TokenTrie::add_nodes() {
  nodes_.push_back({});
  std::vector<uint32_t> path = {0};  // the nodes of the text before, the root first
  std::string_view before;
  const auto close = [&](size_t depth, uint32_t place) {
    for (; path.size() > depth + 1; path.pop_back()) {
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
      nodes_[path.back()].token_end = place;
    }
  };
  for (uint32_t place = 0; place < order_.size(); ++place) {
    const std::string_view next = text(order_[place]);
    const auto shared = static_cast<size_t>(std::ranges::mismatch(before, next).in2 - next.begin());
    close(shared, place);
    for (size_t depth = shared; depth < next.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({.token_begin = place,
                        .own_token_end = place,
                        .depth = static_cast<uint16_t>(depth + 1),
                        .byte = static_cast<uint8_t>(next[depth])});
    }
    nodes_[path.back()].own_token_end = place + 1;
    before = next;
  }
  const auto count = static_cast<uint32_t>(order_.size());
  close(0, count);
  nodes_[0].end = static_cast<uint32_t>(nodes_.size());
  nodes_[0].token_end = count;
}

// A text that begins within a character is taken to complete one: what matters is where the rest
// of it stands.
void TokenTrie::find_below() {
  std::vector<Place> places(nodes_.size(), kBorder);
  std::vector<uint32_t> parents(nodes_.size(), 0);
  std::vector<uint32_t> path = {0};
  for (uint32_t index = 1; index < nodes_.size(); ++index) {
    const Node& node = nodes_[index];
    path.resize(node.depth);
    parents[index] = path.back();
    path.push_back(index);
    const Place before = places[parents[index]];
    const bool completes = before == kBorder && node.depth <= 3 && is_within(node.byte, 0x80, 0xBF);
    places[index] = completes ? kBorder : next_place(before, node.byte);
  }
  // Characters below a node; those of broken texts are too many.
  constexpr uint32_t kTooMany = 1U << 20U;
  std::vector<uint32_t> heights(nodes_.size(), 0);
  for (auto index = static_cast<uint32_t>(nodes_.size()); index-- > 0;) {
    if (places[index] == kBorder && heights[index] < kTooMany) {
      nodes_[index].plain_height = static_cast<uint16_t>(heights[index]);
    }
    if (index == 0) break;
    const uint32_t parent = parents[index];
    const unsigned kinds = kind_of(nodes_[index].byte) | nodes_[index].below;
    nodes_[parent].below = static_cast<ByteKinds>(nodes_[parent].below | kinds);
    const bool continues = is_within(nodes_[index].byte, 0x80, 0xBF);
    // From a border, a continuation byte is no plain character.
    const bool broken = places[index] == kBroken || (continues && places[parent] == kBorder);
    const uint32_t below = broken ? kTooMany : heights[index] + (continues ? 0 : 1);
    heights[parent] = std::max(heights[parent], std::min(below, kTooMany));
  }
}

std::optional<TokenId> TokenTrie::longest(std::string_view text) const {
  std::optional<TokenId> found;
  uint32_t at = 0;
  for (const char byte : text) {
    const uint32_t end = nodes_[at].end;
    uint32_t child = at + 1;
    while (child < end && nodes_[child].byte != static_cast<uint8_t>(byte)) {
      child = nodes_[child].end;
    }
    if (child >= end) break;
    at = child;
    const Node& node = nodes_[at];
    if (node.token_begin < node.own_token_end) found = order_[node.token_begin];
  }
  return found;
}

size_t TokenTrie::size_bytes() const {
  return nodes_.size() * sizeof(Node) + texts_.size() * sizeof(std::string_view) +
         places_.size() * sizeof(uint32_t) + (order_.size() + others_.size()) * sizeof(TokenId);
}

}  // namespace lockstep
