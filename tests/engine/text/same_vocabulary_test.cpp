// A model drafts for another one if their tokens are the same by number.
#include "engine/text/same_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TokenizerData vocabulary(std::vector<std::string> tokens, size_t unused = 0) {
  TokenizerData data;
  data.tokens = std::move(tokens);
  data.types.assign(data.tokens.size() - unused, static_cast<int64_t>(TokenType::kNormal));
  data.types.resize(data.tokens.size(), static_cast<int64_t>(TokenType::kUnused));
  return data;
}

std::string difference(const TokenizerData& model, const TokenizerData& draft) {
  const auto same = check_same_vocabulary(model, draft);
  return same ? "" : same.error().message;
}

TEST(SameVocabulary, has_the_same_texts_by_number) {
  EXPECT_EQ(difference(vocabulary({"a", "b"}), vocabulary({"a", "b"})), "");
  const std::string message = difference(vocabulary({"a", "b", "c"}), vocabulary({"a", "c", "b"}));
  EXPECT_THAT(message, HasSubstr("token 1 is c, the model's is b"));
}

TEST(SameVocabulary, may_have_padding_behind) {
  const TokenizerData plain = vocabulary({"a", "b"});
  const TokenizerData padded = vocabulary({"a", "b", "x", "y"}, 2);
  EXPECT_EQ(difference(plain, padded), "");
  EXPECT_EQ(difference(padded, plain), "");
  const TokenizerData longer = vocabulary({"a", "b", "x", "y"}, 1);
  EXPECT_THAT(difference(plain, longer), HasSubstr("4 tokens, the model has 2, and token 2 is x"));
  EXPECT_THAT(difference(longer, plain), HasSubstr("2 tokens, the model has 4, and token 2 is x"));
  TokenizerData named = vocabulary({"a", "b", "[PAD2]"});
  EXPECT_NE(difference(plain, named), "") << "its type says that it is a word";
  named.types.clear();
  EXPECT_EQ(difference(plain, named), "");
}

}  // namespace
}  // namespace lockstep
