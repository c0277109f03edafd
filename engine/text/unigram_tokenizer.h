// SentencePiece's unigram model: of all ways to cut a text into tokens the one with the largest sum
// of scores. Source: T. Kudo: Subword Regularization, 2018; the SentencePiece library.
//
// Texts are normalized as SentencePiece does it: of strings that the model replaces the longest.
// Hugging Face's tokenizers take a cluster of characters at a time and of its replacements the
// shortest, which differs where letters carry several marks. Sums are in float64, as
// tokenizers' are; SentencePiece's are in float32, which differs where two ways are about as good.
// Characters that no token has become their bytes where the vocabulary has all of these, as in
// both; llama.cpp makes them unknown.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/text/character_map.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

class UnigramTokenizer final : public Tokenizer {
 public:
  // `data` has passed check_tokenizer_data().
  static Result<std::unique_ptr<Tokenizer>> make(TokenizerData data);

 private:
  explicit UnigramTokenizer(TokenizerData data, CharacterMap map);
  void encode_plain(std::string_view text, bool first, size_t tokens_max,
                    std::vector<TokenId>& tokens) const override;

  // The best way to reach a place in a text: its last token.
  struct Arrival {
    double score = 0;
    uint32_t begin = 0;  // of the token
    TokenId token = kNotReached;
  };
  static constexpr TokenId kNotReached = -2;
  static constexpr TokenId kNoToken = -1;  // a character that no token has

  std::string normalize(std::string_view text) const;
  void cut(std::string_view text, std::vector<TokenId>& tokens) const;
  void find_arrivals(std::string_view text, std::vector<Arrival>& arrivals) const;
  void emit_unknown(std::string_view text, bool follows_unknown,
                    std::vector<TokenId>& tokens) const;

  CharacterMap map_;
  PrefixIndex index_of_prefixes_;
  SpecialTokens user_defined_;  // as they are in a normalized text
  double unknown_score_ = 0;
  bool has_all_bytes_ = false;
};

}  // namespace lockstep
