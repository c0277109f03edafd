// The tokens of a query and a document, as models take them that rank documents.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/model/gguf_file.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

struct RankingPrompt {
  std::vector<TokenId> tokens;
  // The first of the document's tokens, where it is a text of its own.
  size_t second_text = std::numeric_limits<size_t>::max();
};

class RankingText {
 public:
  RankingText() = default;
  // The file's form for such texts, tokenizer.chat_template.rerank: query and document stand in the
  // places of {query} and {document}. Without one they are a pair of texts, as
  // Tokenizer::encode_pair() has it.
  static Result<RankingText> read(const GgufFile& file);

  // A form's own words may be control tokens; what query and document spell never is. Once there
  // are more than `tokens_max`, what is left may be left out.
  RankingPrompt encode(const Tokenizer& tokenizer, std::string_view query,
                       std::string_view document, size_t tokens_max) const;

 private:
  std::string form_;  // empty: there is none
};

}  // namespace lockstep
