// PLaMo 2's vocabularies, reckoned by hand; a trained one is compared with llama.cpp in
// vocabulary_files_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>

#include "tests/engine/text/made_tokenizer.h"
#include "tests/engine/text/small_vocabularies.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Plamo, cuts_where_the_sum_of_scores_is_largest) {
  const auto tokenizer = make(small_plamo());
  EXPECT_THAT(texts_of(*tokenizer, "hello the"), ElementsAre("hello", " the"));
  EXPECT_THAT(texts_of(*tokenizer, "hell"), ElementsAre("he", "l", "l"));
  EXPECT_THAT(texts_of(*tokenizer, "é中"), ElementsAre("é", "中"));
}

TEST(Plamo, takes_the_longest_first_of_cuts_that_are_as_good) {
  TokenizerData data = small_plamo();
  add_token(data, "xy", TokenType::kNormal, -2);
  add_token(data, "z", TokenType::kNormal, -3);
  add_token(data, "x", TokenType::kNormal, -3);
  add_token(data, "yz", TokenType::kNormal, -2);
  const auto tokenizer = make(std::move(data));
  EXPECT_THAT(texts_of(*tokenizer, "xyz"), ElementsAre("xy", "z"));
}

TEST(Plamo, takes_no_token_with_a_score_of_minus_2000_or_none) {
  for (const float score : {-2000.0F, -1e30F, std::numeric_limits<float>::infinity(), 1e30F}) {
    TokenizerData data = small_plamo();
    add_token(data, "he the", TokenType::kNormal, score);
    const auto tokenizer = make(std::move(data));
    EXPECT_THAT(texts_of(*tokenizer, "he the"), ElementsAre("he", " the")) << score;
  }
}

TEST(Plamo, writes_what_no_token_has_by_its_bytes) {
  const auto tokenizer = make(small_plamo());
  EXPECT_THAT(texts_of(*tokenizer, "hü\xFF"), ElementsAre("h", "<0xC3>", "<0xBC>", "<0xFF>"));
}

TEST(Plamo, finds_control_tokens_where_special_tokens_are_parsed_alone) {
  const auto tokenizer = make(small_plamo());
  const std::string text = "he<|plamo:eos|>";
  const EncodeOptions parse = {.add_special = false, .parse_special = true};
  EXPECT_THAT(texts_of(*tokenizer, text, parse), ElementsAre("he", "<|plamo:eos|>"));
  const auto tokens = tokenizer->encode(text, {.add_special = false});
  EXPECT_THAT(tokens, testing::Not(testing::Contains(*tokenizer->eos())));
  EXPECT_EQ(tokenizer->decode(tokens, false), text);
}

// The first tokens are those of the whole text, but for the last.
TEST(Plamo, reads_no_more_than_makes_the_tokens_that_are_wanted) {
  const auto tokenizer = make(small_plamo());
  std::string text;
  while (text.size() < 10'000) text += "hello the world ";
  const auto all = tokenizer->encode(text, {.add_special = false});
  for (const size_t most : {0U, 1U, 7U, 100U}) {
    const auto some = tokenizer->encode(text, {.add_special = false, .tokens_max = most});
    ASSERT_GT(some.size(), most);
    EXPECT_LT(some.size(), most + 10);
    for (size_t index = 0; index + 1 < most; ++index) EXPECT_EQ(some[index], all[index]);
  }
}

TEST(Plamo, is_refused_without_scores_or_a_byte) {
  TokenizerData data = small_plamo();
  data.scores.clear();
  const auto unscored = make_tokenizer(std::move(data));
  ASSERT_FALSE(unscored);
  EXPECT_THAT(unscored.error().message, HasSubstr("tokenizer.ggml.scores"));
  data = small_plamo();
  data.types[3 + 65] = static_cast<int64_t>(TokenType::kNormal);
  const auto incomplete = make_tokenizer(std::move(data));
  ASSERT_FALSE(incomplete);
  EXPECT_THAT(incomplete.error().message, HasSubstr("no token of the byte 65"));
}

}  // namespace
}  // namespace lockstep
