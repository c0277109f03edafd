// Real vocabularies against the ids that their own tokenizers give.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "engine/model/gguf_file.h"
#include "engine/text/gguf_tokenizer_data.h"
#include "engine/text/tokenizer.h"
#include "tests/engine/text/random_text.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

std::string vocabulary_path(const std::string& name) {
  return test_data_dir() + "/vocab-" + name + ".gguf";
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Cases are separated by lines that hold nothing but the marker.
std::vector<std::string> read_cases(const std::string& path) {
  const std::string text = read_text(path);
  const std::string marker = "\n__ggml_vocab_test__\n";
  std::vector<std::string> cases;
  size_t position = 0;
  for (size_t found = text.find(marker); found != std::string::npos;
       found = text.find(marker, position)) {
    cases.push_back(text.substr(position, found - position));
    position = found + marker.size();
  }
  if (position < text.size()) cases.push_back(text.substr(position));
  return cases;
}

std::vector<std::vector<TokenId>> read_expected(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::vector<TokenId>> expected;
  for (std::string line; std::getline(file, line);) {
    std::istringstream numbers(line);
    std::vector<TokenId>& ids = expected.emplace_back();
    for (TokenId id = 0; numbers >> id;) ids.push_back(id);
  }
  return expected;
}

class VocabularyFile : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(vocabulary_path(GetParam()))) {
      GTEST_SKIP() << "there is no " << vocabulary_path(GetParam());
    }
    const auto file = GgufFile::open(vocabulary_path(GetParam()));
    ASSERT_TRUE(file) << file.error().message;
    auto data = read_tokenizer_data(*file);
    ASSERT_TRUE(data) << data.error().message;
    auto made = Tokenizer::make(std::move(*data));
    ASSERT_TRUE(made) << made.error().message;
    tokenizer_ = std::move(*made);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(VocabularyFile, gives_the_ids_of_its_own_tokenizer) {
  const auto cases = read_cases(vocabulary_path(GetParam()) + ".inp");
  const auto expected = read_expected(vocabulary_path(GetParam()) + ".out");
  ASSERT_EQ(cases.size(), expected.size());
  ASSERT_GT(cases.size(), 40U);
  for (size_t index = 0; index < cases.size(); ++index) {
    EXPECT_EQ(tokenizer_->encode(cases[index], {.add_special = false}), expected[index])
        << "case " << index << ": " << cases[index];
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

INSTANTIATE_TEST_SUITE_P(All, VocabularyFile, testing::Values("llama-spm", "llama-bpe", "gpt-2"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           for (char& letter : name) letter = letter == '-' ? '_' : letter;
                           return name;
                         });

}  // namespace
}  // namespace lockstep
