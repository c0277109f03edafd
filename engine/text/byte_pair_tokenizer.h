// Byte-level byte pairs as GPT-2 introduced them: a pre-tokenizer cuts the text into words, and in
// each word the neighbouring pair with the lowest merge rank merges, starting from single bytes.
// Tokens are written in an alphabet of 256 visible characters, one for each byte.
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
  // Whether a token stands for the bytes that its letters spell, and so may come of merging.
  bool spells_itself(TokenId token) const;
  void encode_word(std::string_view word, PairMerging& merging, std::vector<TokenId>& tokens) const;

  PreTokenizer pre_;
  MergeIndex merges_;
  TokenIndex whole_words_;  // by decoded bytes; empty unless the pre-tokenizer ignores merges
};

}  // namespace lockstep
