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
#include "engine/text/unigram_cut.h"
#include "engine/text/unigram_text.h"

namespace lockstep {

class UnigramTokenizer final : public Tokenizer {
 public:
  // `data` has passed check_tokenizer_data().
  static Result<std::unique_ptr<Tokenizer>> make(TokenizerData data);

 private:
  explicit UnigramTokenizer(TokenizerData data, CharacterMap map);
  void encode_plain(std::string_view text, bool first, size_t tokens_max,
                    std::vector<TokenId>& tokens) const override;

  // Cuts what is known of a normalized text, up to where a user-defined token may begin of which
  // the end is not known yet, or all if it `is_whole`. Erases what was cut.
  void cut_known(bool is_whole, std::string& known, UnigramCut& cut,
                 std::vector<TokenId>& tokens) const;

  CharacterMap map_;
  UnigramText::Rules rules_;
  UnigramVocabulary vocabulary_;
  SpecialTokens user_defined_;  // as they are in a normalized text
};

}  // namespace lockstep
