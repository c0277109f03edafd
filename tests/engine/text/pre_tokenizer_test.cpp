#include "engine/text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/text/utf8.h"
#include "tests/engine/text/random_text.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> split(std::string_view name, std::string_view text) {
  const auto pre = PreTokenizer::make(name);
  EXPECT_TRUE(pre) << pre.error().message;
  std::vector<std::string_view> words;
  pre->split(text, words);
  return {words.begin(), words.end()};
}

// The file comes from make_pre_tokenizer_expected.py: what another library makes of these texts.
TEST(PreTokenizer, cuts_as_the_reference_does) {
  std::ifstream file(source_dir() + "/tests/engine/text/pre_tokenizer_expected.json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 100U);
  for (const auto& entry : cases) {
    const auto text = entry.at("text").get<std::string>();
    for (const auto& [name, lengths] : entry.at("words").items()) {
      std::vector<std::string> expected;
      size_t position = 0;
      for (const size_t length : lengths) {
        expected.push_back(text.substr(position, length));
        position += length;
      }
      EXPECT_EQ(split(name, text), expected) << name << " of '" << text << "'";
    }
  }
}

TEST(PreTokenizer, knows_the_other_names_of_the_same_patterns) {
  const std::string text = "It's 12345 times\n\n  better";
  EXPECT_EQ(split("llama3", text), split("llama-bpe", text));
  EXPECT_EQ(split("llama-v3", text), split("llama-bpe", text));
  EXPECT_EQ(split("", text), split("default", text));
  EXPECT_NE(split("qwen2", text), split("llama-bpe", text));
}

TEST(PreTokenizer, an_unknown_name_is_refused_with_the_known_ones) {
  const auto pre = PreTokenizer::make("gpt-7\xFF");
  ASSERT_FALSE(pre);
  EXPECT_EQ(pre.error().kind, ErrorKind::kInvalidInput);
  EXPECT_THAT(pre.error().message, HasSubstr("gpt-7"));
  EXPECT_THAT(pre.error().message, HasSubstr("llama-bpe"));
  EXPECT_THAT(pre.error().message, HasSubstr("qwen2"));
  EXPECT_TRUE(is_valid_utf8(pre.error().message));
}

TEST(PreTokenizer, bytes_that_are_no_characters_are_words_of_their_own) {
  EXPECT_THAT(split("gpt-2", "ab\xFF\xFE cd"), ElementsAre("ab", "\xFF\xFE", " cd"));
  EXPECT_THAT(split("gpt-2", "\xE2\x82"), ElementsAre("\xE2\x82"));
}

TEST(PreTokenizer, words_together_are_the_text) {
  const uint64_t seed = 7;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (const char* name : {"default", "gpt-2", "llama-bpe", "qwen2", "smollm"}) {
    for (int round = 0; round < 300; ++round) {
      const std::string text = random_mixture(random, random() % 30);
      std::string joined;
      for (const std::string& word : split(name, text)) {
        EXPECT_FALSE(word.empty());
        joined += word;
      }
      ASSERT_EQ(joined, text) << name << ", round " << round;
    }
  }
}

// A pattern that went back over the run for every word would not end within the test's time.
TEST(PreTokenizer, long_runs_are_cut_in_one_go) {
  const size_t size = 1'000'000;
  for (const char* name : {"default", "gpt-2", "llama-bpe", "qwen2", "smollm"}) {
    EXPECT_THAT(split(name, std::string(size, 'a')), testing::SizeIs(1)) << name;
    EXPECT_THAT(split(name, std::string(size, ' ')), testing::SizeIs(1)) << name;
    EXPECT_THAT(split(name, std::string(size, ' ') + "a"), testing::SizeIs(2)) << name;
    EXPECT_THAT(split(name, std::string(size, '!')), testing::SizeIs(1)) << name;
    EXPECT_THAT(split(name, std::string(size, '\xFF')), testing::SizeIs(1)) << name;
  }
  EXPECT_THAT(split("llama-bpe", std::string(300'000, '7')), testing::SizeIs(100'000));
}

}  // namespace
}  // namespace lockstep
