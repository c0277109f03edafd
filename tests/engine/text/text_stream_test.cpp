#include "engine/text/text_stream.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/utf8.h"
#include "tests/engine/text/made_tokenizer.h"
#include "tests/engine/text/random_text.h"
#include "tests/engine/text/small_vocabularies.h"

namespace lockstep {
namespace {

TEST(TextStream, a_character_comes_out_when_it_is_whole) {
  const auto tokenizer = make(small_byte_pair());
  TextStream stream(*tokenizer, true, true);
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.push(0x98), "");
  EXPECT_EQ(stream.push(0x80), "\U0001F600");
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, what_can_never_be_a_character_is_replaced) {
  const auto tokenizer = make(small_byte_pair());
  TextStream stream(*tokenizer, true, true);
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push('a'), "\uFFFDa");
  EXPECT_EQ(stream.push(0xFF), "\uFFFD");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST(TextStream, pieces_joined_are_the_whole_decoded_text) {
  const uint64_t seed = 21;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (const TokenizerData& data :
       {small_sentence_piece(), small_byte_pair(), small_character_pair()}) {
    const auto tokenizer = make(data);
    for (int round = 0; round < 500; ++round) {
      std::vector<TokenId> tokens;
      for (size_t count = random() % 40; count > 0; --count) {
        tokens.push_back(static_cast<TokenId>(random() % tokenizer->vocabulary_size()));
      }
      for (const bool skip_special : {false, true}) {
        TextStream stream(*tokenizer, skip_special, true);
        std::string joined;
        for (const TokenId token : tokens) {
          const std::string text = stream.push(token);
          ASSERT_TRUE(is_valid_utf8(text));
          joined += text;
        }
        joined += stream.finish();
        ASSERT_EQ(joined, replace_invalid_utf8(tokenizer->decode(tokens, !skip_special)))
            << "round " << round;
      }
    }
  }
}

TEST(TextStream, the_first_space_goes_only_at_the_start_of_a_text) {
  const auto tokenizer = make(small_sentence_piece());
  const TokenId hello = *tokenizer->find("▁hello");
  TextStream own(*tokenizer, true, true);
  EXPECT_EQ(own.push(*tokenizer->bos()), "");
  EXPECT_EQ(own.push(hello), "hello");
  EXPECT_EQ(own.push(hello), " hello");
  TextStream continued(*tokenizer, true, false);
  EXPECT_EQ(continued.push(hello), " hello");
}

TEST(TextStream, control_tokens_show_only_when_asked) {
  const auto tokenizer = make(small_byte_pair());
  const TokenId end = *tokenizer->find("<|im_end|>");
  EXPECT_EQ(TextStream(*tokenizer, true, true).push(end), "");
  EXPECT_EQ(TextStream(*tokenizer, false, true).push(end), "<|im_end|>");
}

}  // namespace
}  // namespace lockstep
