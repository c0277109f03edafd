// SentencePiece's byte pairs: neighbouring characters merge into the token with the highest score,
// over the whole text, with U+2581 in the place of spaces; what is no token becomes byte tokens.
// Source: the SentencePiece library's BPE model.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/result.h"
#include "engine/text/pair_merging.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // `data` has passed check_tokenizer_data().
  static Result<std::unique_ptr<Tokenizer>> make(TokenizerData data);

 private:
  explicit SentencePieceTokenizer(TokenizerData data);
  void encode_plain(std::string_view text, bool first, size_t tokens_max,
                    std::vector<TokenId>& tokens) const override;

  // How unused tokens came about in one text: the size of the left part. They take part in merges,
  // but in the end are cut into their parts again.
  using UnusedParts = std::unordered_map<TokenId, uint32_t>;

  std::string normalize(std::string_view text, bool first) const;
  void merge_slice(std::string_view text, std::vector<TokenId>& tokens) const;
  void emit(std::string_view symbol, const UnusedParts& unused, std::vector<TokenId>& tokens) const;
  void emit_bytes(std::string_view symbol, std::vector<TokenId>& tokens) const;

  TokenIndex mergeable_;
  SpecialTokens user_defined_;
  std::vector<uint32_t> priorities_;  // by token: the higher the score the lower
};

}  // namespace lockstep
