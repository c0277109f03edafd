// Vocabularies as a broken or hostile file may hold them: a clear error or a tokenizer that works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/model_tokenizer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "tests/engine/text/random_text.h"
#include "tests/engine/text/small_vocabularies.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

void expect_refused(TokenizerData data, const std::string& key) {
  const auto made = make_tokenizer(std::move(data));
  ASSERT_FALSE(made) << "was taken; expected an error about " << key;
  EXPECT_EQ(made.error().kind, ErrorKind::kInvalidInput);
  EXPECT_THAT(made.error().message, HasSubstr(key));
  EXPECT_TRUE(is_valid_utf8(made.error().message));
  EXPECT_LT(made.error().message.size(), 2000U);  // most of it names that are known
}

// Whatever the vocabulary: ids stay in range, nothing crashes.
void expect_works(const Tokenizer& tokenizer, std::mt19937_64& random) {
  for (const std::string& text : {random_mixture(random, 30), random_characters(random, 60),
                                  std::string("hello <|im_end|></s> the thing")}) {
    for (const bool special : {false, true}) {
      const auto tokens =
          tokenizer.encode(text, {.add_special = special, .parse_special = special});
      for (const TokenId token : tokens) {
        ASSERT_GE(token, 0);
        ASSERT_LT(static_cast<size_t>(token), tokenizer.vocabulary_size());
      }
      tokenizer.decode(tokens, special);
    }
  }
  for (size_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    tokenizer.piece(static_cast<TokenId>(id), true);
  }
}

TEST(HostileVocabulary, each_wrong_field_is_named) {
  const auto change = [](TokenizerData data, const std::function<void(TokenizerData&)>& apply) {
    apply(data);
    return data;
  };
  for (const TokenizerData& good :
       {small_sentence_piece(), small_byte_pair(), small_character_pair(), small_word_piece(),
        small_unigram(true), small_plamo()}) {
    expect_refused(change(good, [](auto& data) { data.tokens.clear(); }), "tokenizer.ggml.tokens");
    expect_refused(change(good, [](auto& data) { data.types.pop_back(); }),
                   "tokenizer.ggml.token_type");
    expect_refused(change(good, [](auto& data) { data.types[9] = 0; }),
                   "tokenizer.ggml.token_type[9]");
    expect_refused(change(good, [](auto& data) { data.types[9] = INT64_MIN; }),
                   "tokenizer.ggml.token_type[9]");
    expect_refused(change(good, [](auto& data) { data.scores.assign(7, 0.0F); }),
                   "tokenizer.ggml.scores");
    expect_refused(change(good,
                          [](auto& data) {
                            data.scores.assign(data.tokens.size(), 0.0F);
                            data.scores[11] = std::numeric_limits<float>::quiet_NaN();
                          }),
                   "tokenizer.ggml.scores[11]");
    expect_refused(change(good, [](auto& data) { data.bos = -1; }), "bos_token_id is -1");
    expect_refused(change(good, [](auto& data) { data.padding = 1'000'000; }),
                   "padding_token_id is 1000000");
    expect_refused(change(good, [](auto& data) { data.eot = INT32_MAX; }), "eot_token_id");
    expect_refused(change(good, [](auto& data) { data.model = "wordpiece\xC3"; }), "wordpiece");
    expect_refused(change(good, [](auto& data) { data.tokens[5].assign(1U << 20U, 'x'); }),
                   "tokenizer.ggml.tokens[5]");
    expect_refused(
        change(good,
               [](auto& data) { add_token(data, std::string(1000, 'x'), TokenType::kControl); }),
        "control");
  }
  for (const char* text :
       {"<0x-1>", "<0x1>", "<0x100>", "<0xGG>", "<0x 1>", "0x41", "", "<0x+1>"}) {
    TokenizerData data = small_sentence_piece();
    data.tokens[3] = text;
    expect_refused(data, "tokenizer.ggml.tokens[3]");
  }
  for (const char* merge : {"", " ", "a", "a ", "in  g", "in gg", "zz a", "a\xFF b", "h e l"}) {
    for (TokenizerData data : {small_byte_pair(), small_character_pair()}) {
      data.merges[4] = merge;
      expect_refused(data, "tokenizer.ggml.merges[4]");
    }
  }
  for (TokenizerData scoreless : {small_sentence_piece(), small_unigram(false)}) {
    scoreless.scores.clear();
    expect_refused(scoreless, "tokenizer.ggml.scores");
  }
  for (TokenizerData data : {small_word_piece(), small_unigram(false)}) {
    data.tokens[static_cast<size_t>(*data.unknown)] = "no";
    data.types[static_cast<size_t>(*data.unknown)] = static_cast<int64_t>(TokenType::kControl);
    data.unknown.reset();
    expect_refused(data, "unknown_token_id");
  }
  TokenizerData long_token = small_unigram(false);
  long_token.tokens.back() = std::string(2049, 'x');
  expect_refused(long_token, "tokens[22] has 2049 bytes");
  long_token.tokens.back().pop_back();
  EXPECT_TRUE(make_tokenizer(long_token));
  TokenizerData mapped = small_unigram(false);
  mapped.character_map = {1, 0, 0, 0, 0};
  expect_refused(mapped, "precompiled_charsmap");
  TokenizerData separated = small_word_piece();
  separated.separator = 1000;
  expect_refused(separated, "seperator_token_id is 1000");
  expect_refused(small_byte_pair("no such"), "tokenizer.ggml.pre");
}

TEST(HostileVocabulary, a_vocabulary_without_types_works) {
  std::mt19937_64 random(1);
  for (TokenizerData data : {small_sentence_piece(), small_byte_pair(), small_character_pair()}) {
    data.types.clear();
    const auto made = make_tokenizer(data);
    ASSERT_TRUE(made) << made.error().message;
    expect_works(**made, random);
    EXPECT_EQ((*made)->decode((*made)->encode("hello \xFF", {}), false), "hello \xFF");
    EXPECT_EQ((*made)->piece(*data.eos, false), "");
  }
}

void mutate(TokenizerData& data, std::mt19937_64& random) {
  const auto any_token = [&]() -> std::string& {
    return data.tokens[random() % data.tokens.size()];
  };
  const auto any_id = [&]() -> TokenId {
    static constexpr TokenId kOdd[] = {0, 1, -1, 255, 256, 280, INT32_MAX, INT32_MIN};
    return kOdd[random() % std::size(kOdd)];
  };
  switch (random() % 12) {
    case 0:
      any_token() = any_token();
      break;
    case 1:
      any_token() = random_bytes(random, random() % 20);
      break;
    case 2:
      any_token().clear();
      break;
    case 3:
      any_token() = std::string(random() % 70'000, 'a');
      break;
    case 4:
      data.types[random() % data.types.size()] = static_cast<int64_t>(random() % 8);
      break;
    case 5:
      if (!data.scores.empty()) {
        static constexpr float kOdd[] = {-0.0F, 1e30F, -1e30F, NAN, INFINITY, -INFINITY};
        data.scores[random() % data.scores.size()] = kOdd[random() % std::size(kOdd)];
      }
      break;
    case 6:
      data.bos = any_id();
      break;
    case 7:
      data.unknown = any_id();
      break;
    case 8:
      data.merges.push_back(any_token() + " " + any_token());
      break;
    case 9:
      data.tokens.pop_back();
      break;
    case 10:
      add_token(data, "<0x-1>", TokenType::kUserDefined);
      break;
    case 11:
      add_token(data, any_token(), TokenType::kUnused, 100);
      break;
    default:
      break;
  }
}

TEST(HostileVocabulary, mutations_are_refused_or_work) {
  const uint64_t seed = 99;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  int taken = 0;
  for (int round = 0; round < 1000; ++round) {
    const std::array<TokenizerData, 5> kinds = {
        small_sentence_piece(), small_byte_pair("llama-bpe"), small_word_piece(),
        small_unigram(round % 2 == 0), small_character_pair()};
    TokenizerData data = kinds[static_cast<size_t>(round) % kinds.size()];
    for (size_t count = 1 + random() % 4; count > 0; --count) mutate(data, random);
    const auto made = make_tokenizer(std::move(data));
    if (made) {
      ++taken;
      expect_works(**made, random);
    } else {
      EXPECT_THAT(made.error().message, HasSubstr("tokenizer.ggml.")) << "round " << round;
    }
  }
  EXPECT_GT(taken, 100);
  EXPECT_LT(taken, 900);
}

}  // namespace
}  // namespace lockstep
