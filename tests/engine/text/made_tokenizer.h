// Tokenizers of vocabularies that are good, and what they make of texts.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/model_tokenizer.h"

namespace lockstep {

// Never null: what cannot be made fails the test and ends it.
inline std::unique_ptr<Tokenizer> make(TokenizerData data) {
  auto made = make_tokenizer(std::move(data));
  EXPECT_TRUE(made) << made.error().message;
  return std::move(*made);
}

// The texts of a text's tokens.
inline std::vector<std::string> texts_of(const Tokenizer& tokenizer, std::string_view text,
                                         const EncodeOptions& options = {.add_special = false}) {
  std::vector<std::string> texts;
  for (const TokenId token : tokenizer.encode(text, options)) {
    texts.emplace_back(tokenizer.token_text(token));
  }
  return texts;
}

}  // namespace lockstep
