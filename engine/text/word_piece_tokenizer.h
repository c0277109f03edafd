// WordPiece: each word is cut into the longest tokens from its left, those that begin a word apart
// from those that go on in one. Files write the former with U+2581 before them, and the latter
// without the original's "##". Source: M. Schuster, K. Nakajima: Japanese and Korean Voice Search,
// 2012; BERT.
//
// Ids are those of Hugging Face's tokenizers. llama.cpp gives other ids for words of more than 100
// characters, which are unknown as a whole; for words with no token that begins them, where it
// takes a token that goes on with U+2581; and, since its Unicode tables are others, for some marks,
// symbols and unassigned characters.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/text/tokenizer.h"
#include "engine/text/word_piece_text.h"

namespace lockstep {

class WordPieceTokenizer final : public Tokenizer {
 public:
  // `data` has passed check_tokenizer_data().
  static Result<std::unique_ptr<Tokenizer>> make(TokenizerData data);

 private:
  explicit WordPieceTokenizer(TokenizerData data);
  void encode_plain(std::string_view text, bool first, size_t tokens_max,
                    std::vector<TokenId>& tokens) const override;
  // Appends a word's tokens, or the unknown token.
  void encode_word(const WordPieceText::Word& word, std::vector<TokenId>& tokens) const;

  // As the file says; without its keys those of models without case.
  WordPieceRules rules_;

  PrefixIndex starts_;         // tokens that begin a word, without the mark
  PrefixIndex continuations_;  // those that go on in one
};

}  // namespace lockstep
