// Byte pairs as GPT-2 introduced them: a pre-tokenizer cuts the text into words, and in each word
// the neighbouring pair with the lowest merge rank merges. It starts from single bytes, each of
// which a visible character stands for in the texts of tokens; or, as Gemma 4 does, from characters
// (U+2581 for a space), and from the bytes of those that are no tokens; or, in a text of which
// white space and, where the file says so, case are left out, from characters alone.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/result.h"
#include "engine/text/pair_merging.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

class BytePairTokenizer final : public Tokenizer {
 public:
  // `data` has passed check_tokenizer_data(). Fails for an unknown pre-tokenizer and for merges of
  // texts that are no tokens.
  static Result<std::unique_ptr<Tokenizer>> make(TokenizerData data);

 private:
  explicit BytePairTokenizer(PreTokenizer pre_tokenizer) : pre_(std::move(pre_tokenizer)) {}
  void encode_plain(std::string_view text, bool first, size_t tokens_max,
                    std::vector<TokenId>& tokens) const override;

  Result<void> adopt_merges(const std::vector<std::string>& merges);
  void fill_pieces();
  void find_byte_letters();
  void find_byte_tokens();
  void find_characters();
  // The bytes that a token's text stands for, by the alphabet.
  std::string spell(std::string_view text) const;
  // Whether a token stands for the bytes that its text spells, and so may come of merging.
  bool spells_itself(TokenId token) const;
  bool has_characters() const { return pre_.alphabet() == TokenAlphabet::kCharacters; }
  bool has_letters() const { return pre_.alphabet() == TokenAlphabet::kLetters; }
  void encode_word(std::string_view word, PairMerging& merging, std::vector<TokenId>& tokens) const;

  PreTokenizer pre_;
  MergeIndex merges_;
  TokenIndex whole_words_;  // by decoded bytes; empty unless the pre-tokenizer ignores merges
  TokenIndex characters_;   // as texts have them; empty where merging starts from bytes
};

}  // namespace lockstep
