// Which tokens may come next.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/text/grammar/token_trie.h"

namespace lockstep {

struct PlaceRange {  // of places in TokenTrie::order()
  uint32_t begin = 0;
  uint32_t end = 0;
};

class TokenMask {
 public:
  // The trie must outlive this. Nothing is allowed yet.
  explicit TokenMask(const TokenTrie& trie)
      : trie_(&trie), words_((trie.order().size() + kWordBits - 1) / kWordBits, 0) {}

  void clear();
  void allow(PlaceRange places);
  // Allows the tokens of another mask's words, made for the same trie.
  void allow(std::span<const uint64_t> words);
  // Tokens without text (or with: then as what they are).
  void allow_tokens(std::span<const TokenId> tokens);

  // Sets what is not allowed to minus infinity. CHECKs that there is one value per logit.
  void apply(std::span<float> logits) const;

  bool allows(TokenId token) const;
  // How many tokens with text are allowed.
  size_t count() const;
  std::span<const uint64_t> words() const { return words_; }

 private:
  static constexpr size_t kWordBits = 64;

  template <typename Use>
  void for_each_place(bool allowed, const Use& use) const;

  const TokenTrie* trie_;
  std::vector<uint64_t> words_;  // by place
  std::vector<TokenId> extra_;
  mutable std::vector<float> kept_;  // reused
};

}  // namespace lockstep
