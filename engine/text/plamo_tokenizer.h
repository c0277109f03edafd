// PLaMo 2's vocabularies: of all ways to cut a text into tokens the one with the largest sum of
// scores, in ten thousandths; of several the one whose first token is the longest. A character that
// no token has becomes its bytes, for a score far below any token's. Source: the tokenizer that
// Preferred Networks published with the models, 2025, which walks from a text's end to its begin.
//
// That one and llama.cpp's find control tokens in any text; here they are found where special
// tokens are parsed. Takes 16 bytes for each byte of a text, as far as it is cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/text/token_index.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

class PlamoTokenizer final : public Tokenizer {
 public:
  // `data` has passed check_tokenizer_data().
  static Result<std::unique_ptr<Tokenizer>> make(TokenizerData data);

 private:
  // The best way to cut a text from some character on.
  struct Cut {
    int64_t cost = 0;
    TokenId token = -1;       // the first one; -1: its first character's bytes
    uint32_t size_bytes = 0;  // of the first token, or character; 0: no character begins here
  };

  explicit PlamoTokenizer(TokenizerData data);
  void encode_plain(std::string_view text, bool first, size_t tokens_max,
                    std::vector<TokenId>& tokens) const override;
  std::vector<Cut> find_cuts(std::string_view text) const;

  PrefixIndex prefixes_;
  std::vector<int64_t> costs_;  // by token
  size_t longest_ = 1;          // token, in bytes
};

}  // namespace lockstep
