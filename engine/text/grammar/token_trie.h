// The texts of a vocabulary's tokens as a tree of bytes, so that what tokens begin with in common
// is looked at once. Made once per vocabulary, immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/grammar/character_set.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

class TokenTrie {
 public:
  // A plain character is what a JSON string holds as it is, whatever the string: a character from
  // U+0020 up but for " \ U+007F and the line and paragraph separators.
  static constexpr uint16_t kNotPlain = 0xFFFF;

  // Nodes stand in depth-first order, children by byte; node 0 is the root.
  struct Node {
    uint32_t end = 0;            // behind the last node below this one
    uint32_t token_begin = 0;    // the places (see order()) of the tokens that end here,
    uint32_t own_token_end = 0;  // and of those that end here
    uint32_t token_end = 0;      // or below
    uint16_t depth = 0;
    // If every text below continues from here with plain characters alone (the last one possibly
    // cut off): how many of them at most. Otherwise kNotPlain.
    uint16_t plain_height = kNotPlain;
    uint8_t byte = 0;
    ByteKinds below = 0;  // of all bytes below
  };

  // Holds all tokens that stand for text, and control tokens by their control_path(): none that
  // ends a generation, none that is empty or longer than kTokenBytesMax. `vocabulary_size` counts
  // the logits, which may be more than the tokenizer's tokens.
  TokenTrie(const Tokenizer& tokenizer, size_t vocabulary_size);

  static constexpr size_t kTokenBytesMax = 1024;

  // The bytes by which a grammar asks for a control token. They begin with one that no UTF-8 holds:
  // no text asks for them, and no token of text has it.
  static constexpr char kControlByte = '\xFF';
  static std::string control_path(TokenId token);

  const std::vector<Node>& nodes() const { return nodes_; }
  // The tokens that it holds, in the order of their paths: a token's place is its index here.
  std::span<const TokenId> order() const { return order_; }
  // A token's place, or kNoPlace.
  static constexpr uint32_t kNoPlace = 0xFFFFFFFF;
  uint32_t place(TokenId token) const {
    const auto index = static_cast<size_t>(token);
    return token >= 0 && index < places_.size() ? places_[index] : kNoPlace;
  }
  // All others, ascending.
  std::span<const TokenId> others() const { return others_; }
  size_t vocabulary_size() const { return vocabulary_size_; }
  // The bytes of a token that has a place, its text or its control_path(); "" for others.
  std::string_view text(TokenId token) const;
  // The token of the longest path that the text begins with; none: it begins with no token's.
  std::optional<TokenId> longest(std::string_view text) const;
  bool is_text(TokenId token) const {
    return !text(token).empty() && text(token).front() != kControlByte;
  }
  size_t size_bytes() const;

 private:
  void add_nodes();
  void find_below();

  size_t vocabulary_size_;
  std::vector<std::string_view> texts_;  // by token; they belong to the tokenizer, or are of
  std::deque<std::string> control_;      // these
  std::vector<uint32_t> places_;         // by token
  std::vector<TokenId> order_;
  std::vector<TokenId> others_;
  std::vector<Node> nodes_;
};

}  // namespace lockstep
