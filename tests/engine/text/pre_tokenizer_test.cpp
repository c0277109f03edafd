#include "engine/text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/text/utf8.h"
#include "tests/engine/text/random_text.h"
#include "tests/paths.h"
#include "tests/tried_cases.h"

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
    EXPECT_EQ(split("whitespace", text), entry.at("whitespace").get<std::vector<std::string>>())
        << text;
  }
}

// The names that share the patterns of one that the reference has.
constexpr std::pair<std::string_view, std::string_view> kSame[] = {
    {"gpt-2",
     "phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert mpt olmo "
     "jais "
     "exaone4 trillion granite-docling roberta-bpe jina-v1-en jina-v2-code"},
    {"smollm", "starcoder refact command-r codeshell exaone minerva-7b mellum2"},
    {"llama-bpe",
     "llama-v3 llama3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe "
     "chatglm-bpe glm4 glm5"},
    {"qwen2", "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"},
    {"bailingmoe", "bailingmoe2 llada-moe"},
    {"gpt-4o", "llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m"},
    {"tiny_aya", "cohere2moe"},
    {"deepseek-v3", "hunyuan-dense joyai-llm hy_v4"},
    {"poro-chat", "bloom gpt3-finnish"},
    {"gemma4", "granite-embed-multi-311m sarvam-moe"}};

TEST(PreTokenizer, knows_the_other_names_of_the_same_patterns) {
  std::ifstream file(source_dir() + "/tests/engine/text/pre_tokenizer_expected.json");
  std::set<std::string> tried = {"whitespace"};
  for (const auto& entry : nlohmann::json::parse(file)) {
    const auto text = entry.at("text").get<std::string>();
    for (const auto& [name, lengths] : entry.at("words").items()) tried.insert(name);
    for (const auto& [name, others] : kSame) {
      std::istringstream words{std::string(others)};
      for (std::string other; words >> other;) {
        EXPECT_EQ(split(other, text), split(name, text)) << other;
        tried.insert(other);
      }
    }
  }
  // Each row is one of these.
  std::set<std::string> known;
  for (const std::string_view name : PreTokenizer::names()) known.emplace(name);
  EXPECT_EQ(known, tried);
}

TEST(PreTokenizer, has_the_flags_that_the_vocabularies_of_a_name_need) {
  for (const char* name : {"llama-bpe", "tekken", "falcon3", "glm4", "minicpm5", "youtu"}) {
    EXPECT_TRUE(PreTokenizer::make(name)->ignores_merges()) << name;
  }
  for (const char* name : {"llama-bpe", "tekken", "chameleon", "lfm2"}) {
    EXPECT_TRUE(PreTokenizer::make(name)->adds_bos()) << name;
  }
  for (const char* name : {"gpt-4o", "deepseek-v3", "qwen35", "kimi-k2", "dbrx"}) {
    EXPECT_FALSE(PreTokenizer::make(name)->ignores_merges()) << name;
    EXPECT_FALSE(PreTokenizer::make(name)->adds_bos()) << name;
  }
  for (const char* name : {"gemma4", "granite-embed-multi-311m"}) {
    EXPECT_TRUE(PreTokenizer::make(name)->insists_on_bos()) << name;
  }
  EXPECT_FALSE(PreTokenizer::make("sarvam-moe")->insists_on_bos());
  for (const char* name : {"roberta-bpe", "jina-v1-en", "jina-v2-code"}) {
    EXPECT_TRUE(PreTokenizer::make(name)->adds_separator()) << name;
  }
  EXPECT_FALSE(PreTokenizer::make("gpt-2")->adds_separator());
}

TEST(PreTokenizer, no_name_and_other_patterns) {
  const std::string text = "It's 12345 times\n\n  better";
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
  for (const std::string_view name : PreTokenizer::names()) {
    if (name == "whitespace") continue;  // which is left out
    for (int round = 0; round < 100; ++round) {
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
  const size_t size = tried_cases(1'000'000);
  for (const char* name : {"default", "gpt-2", "llama-bpe", "qwen2", "smollm"}) {
    EXPECT_THAT(split(name, std::string(size, 'a')), testing::SizeIs(1)) << name;
    EXPECT_THAT(split(name, std::string(size, ' ')), testing::SizeIs(1)) << name;
    EXPECT_THAT(split(name, std::string(size, ' ') + "a"), testing::SizeIs(2)) << name;
    EXPECT_THAT(split(name, std::string(size, '!')), testing::SizeIs(1)) << name;
    EXPECT_THAT(split(name, std::string(size, '\xFF')), testing::SizeIs(1)) << name;
  }
  EXPECT_THAT(split("llama-bpe", std::string(300'000, '7')), testing::SizeIs(100'000));
  EXPECT_THAT(split("tiny_aya", std::string(300'001, '7')), testing::SizeIs(100'001));
  EXPECT_THAT(split("superbpe", std::string(300'001, '7')), testing::SizeIs(100'001));
  for (const std::string_view name : PreTokenizer::names()) {
    for (const char* unit :
         {"a", "A", "Aa", "aA", " ", "!", "中", "\u0301", "7", "\n", "'s", "/"}) {
      std::string run;
      while (run.size() < size / 16) run += unit;
      // Nothing is left over because a budget ran out: the second half is cut as the first is.
      const auto once = split(name, run).size();
      const auto twice = split(name, run + "|a|" + run + "q").size();
      EXPECT_GE(twice, once) << name << " " << unit;
      EXPECT_LE(twice, 2 * once + 12) << name << " " << unit;
    }
  }
}

}  // namespace
}  // namespace lockstep
