// Vocabularies of tests/fixtures/make_vocabularies.py against the ids of their own tokenizers.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/model/gguf_file.h"
#include "engine/text/model_tokenizer.h"
#include "engine/text/tokenizer.h"
#include "tests/engine/text/random_text.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

std::string vocabulary_path(const std::string& name) {
  return source_dir() + "/tests/fixtures/vocabularies/" + name;
}

class VocabularyFile : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto file = GgufFile::open(vocabulary_path(GetParam()) + ".gguf");
    ASSERT_TRUE(file) << file.error().message;
    auto data = read_tokenizer_data(*file);
    ASSERT_TRUE(data) << data.error().message;
    auto made = make_tokenizer(std::move(*data));
    ASSERT_TRUE(made) << made.error().message;
    tokenizer_ = std::move(*made);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(VocabularyFile, gives_the_ids_of_its_own_tokenizer) {
  std::ifstream file(vocabulary_path(GetParam()) + ".json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 60U);
  for (const auto& entry : cases) {
    const auto text = entry.at("text").get<std::string>();
    EXPECT_EQ(tokenizer_->encode(text, {.add_special = false}),
              entry.at("ids").get<std::vector<TokenId>>())
        << "'" << text << "'";
  }
}

TEST_P(VocabularyFile, brings_every_byte_string_back) {
  const uint64_t seed = 20240817;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 1000; ++round) {
    const std::string text = round % 3 == 0   ? random_bytes(random, random() % 200)
                             : round % 3 == 1 ? random_characters(random, random() % 100)
                                              : random_mixture(random, random() % 40);
    // Tokens of a text's own letters: "<|eot_id|>" in it is not taken for the token.
    const auto tokens = tokenizer_->encode(text, {.add_special = false});
    ASSERT_EQ(tokenizer_->decode(tokens, false), text) << "round " << round;
  }
}

TEST_P(VocabularyFile, brings_long_runs_back) {
  for (const char* unit : {"a", " ", "\n", "9", "=", "\xFF", "ab ", "中", " \n"}) {
    std::string text;
    while (text.size() < 100'000) text += unit;
    const auto tokens = tokenizer_->encode(text, {.add_special = false});
    ASSERT_EQ(tokenizer_->decode(tokens, false), text) << "run of '" << unit << "'";
  }
}

std::string test_name(const testing::TestParamInfo<const char*>& parameter) {
  std::string name = parameter.param;
  for (char& letter : name) letter = letter == '-' ? '_' : letter;
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, VocabularyFile,
                         testing::Values("spm", "llama-bpe", "gpt-2", "qwen2", "superbpe", "gemma4",
                                         "plamo2"),
                         test_name);

TokenizerData data_of(const std::string& name) {
  const auto file = GgufFile::open(vocabulary_path(name) + ".gguf");
  EXPECT_TRUE(file) << file.error().message;
  auto data = read_tokenizer_data(*file);
  EXPECT_TRUE(data) << data.error().message;
  return std::move(*data);
}

// Files of other models name it by its pre-tokenizer; not all begin texts with a token.
TEST(CharacterPairNames, give_the_same_ids) {
  std::ifstream file(vocabulary_path("gemma4.json"));
  const auto cases = nlohmann::json::parse(file);
  for (const char* name : {"sarvam-moe", "granite-embed-multi-311m"}) {
    TokenizerData data = data_of("gemma4");
    data.model = "gpt2";
    data.pre = name;
    data.add_bos = false;
    const auto made = make_tokenizer(std::move(data));
    ASSERT_TRUE(made) << made.error().message;
    for (const auto& entry : cases) {
      const auto text = entry.at("text").get<std::string>();
      EXPECT_EQ((*made)->encode(text, {.add_special = false}),
                entry.at("ids").get<std::vector<TokenId>>())
          << name << " '" << text << "'";
    }
    EXPECT_EQ((*made)->adds_bos(), std::string_view(name) != "sarvam-moe") << name;
  }
}

// <s> one </s></s> another </s>
TEST(RobertaNames, put_a_separator_between_two_texts) {
  for (const char* name : {"roberta-bpe", "jina-v1-en", "jina-v2-code", "gpt-2"}) {
    TokenizerData data = data_of("gpt-2");
    data.pre = name;
    data.bos = 1;
    data.separator = 2;
    data.eos = 2;
    data.add_bos = data.add_eos = true;
    const auto made = make_tokenizer(std::move(data));
    ASSERT_TRUE(made) << made.error().message;
    const std::vector<TokenId> one = (*made)->encode("Hello", {.add_special = false});
    const std::vector<TokenId> another = (*made)->encode("world", {.add_special = false});
    std::vector<TokenId> expected = {1};
    expected.insert(expected.end(), one.begin(), one.end());
    expected.push_back(2);
    if (std::string_view(name) != "gpt-2") expected.push_back(2);
    expected.insert(expected.end(), another.begin(), another.end());
    expected.push_back(2);
    std::vector<TokenId> pair;
    (*made)->encode_pair("Hello", "world", 100, pair);
    EXPECT_EQ(pair, expected) << name;
  }
}

class CharacterPairFile : public VocabularyFile {};

TEST_P(CharacterPairFile, reads_special_tokens_as_its_own_tokenizer_does) {
  std::ifstream file(vocabulary_path(GetParam()) + "-special.json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 5U);
  for (const auto& entry : cases) {
    const auto text = entry.at("text").get<std::string>();
    const auto ids = entry.at("ids").get<std::vector<TokenId>>();
    const auto tokens = tokenizer_->encode(text, {.add_special = false, .parse_special = true});
    EXPECT_EQ(tokens, ids) << "'" << text << "'";
    EXPECT_EQ(tokenizer_->decode(tokens, /*special=*/true), text);
  }
}

TEST_P(CharacterPairFile, begins_texts_and_ends_turns) {
  const TokenId begin = tokenizer_->find("<bos>").value();
  EXPECT_EQ(tokenizer_->encode("", {}), std::vector{begin});
  for (const char* text : {"<eos>", "<turn|>"}) {
    EXPECT_TRUE(tokenizer_->ends_generation(tokenizer_->find(text).value())) << text;
  }
  for (const char* text : {"<|turn>", "<bos>", "<|tool_call>", "<tool_call|>"}) {
    EXPECT_FALSE(tokenizer_->ends_generation(tokenizer_->find(text).value())) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CharacterPairFile, testing::Values("gemma4"), test_name);

// Vocabularies that change a text before they cut it.
class ChangingVocabularyFile : public VocabularyFile {};

TEST_P(ChangingVocabularyFile, gives_the_ids_of_its_own_tokenizer) {
  std::ifstream file(vocabulary_path(GetParam()) + ".json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 200U);
  for (const auto& entry : cases) {
    const auto text = entry.at("text").get<std::string>();
    EXPECT_EQ(tokenizer_->encode(text, {}), entry.at("ids").get<std::vector<TokenId>>())
        << "'" << text << "'";
  }
}

TEST_P(ChangingVocabularyFile, takes_any_bytes_and_long_runs) {
  const uint64_t seed = 20261126;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  std::vector<std::string> texts;
  for (int round = 0; round < 300; ++round) texts.push_back(random_mixture(random, random() % 40));
  for (const char* unit : {"a", " ", "\xFF", "中", "é", "\u0301", "\u0898", " \n", "하"}) {
    texts.emplace_back();
    while (texts.back().size() < 100'000) texts.back() += unit;
  }
  for (const std::string& text : texts) {
    const auto tokens = tokenizer_->encode(text, {});
    for (const TokenId token : tokens) {
      ASSERT_GE(token, 0);
      ASSERT_LT(static_cast<size_t>(token), tokenizer_->vocabulary_size());
    }
    ASSERT_LE(tokenizer_->least_tokens(text.size()), tokens.size());
  }
}

INSTANTIATE_TEST_SUITE_P(All, ChangingVocabularyFile,
                         testing::Values("word-piece", "word-piece-cased", "unigram",
                                         "unigram-bytes", "whitespace"),
                         test_name);

}  // namespace
}  // namespace lockstep
