// WordPiece, beside the normalizer and pre-tokenizer of BERT in Hugging Face's tokenizers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/text/utf8.h"
#include "engine/text/word_piece_text.h"
#include "tests/engine/text/made_tokenizer.h"
#include "tests/engine/text/small_vocabularies.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

std::vector<std::string> words_of(std::string_view text, const WordPieceRules& rules) {
  std::vector<std::string> words;
  const WordPieceText::TakeWord take_word = [&](const WordPieceText::Word& word) {
    words.emplace_back(word.text);
  };
  WordPieceText splitter(rules, take_word);
  while (!text.empty()) {
    const DecodedCharacter character = decode_utf8(text);
    splitter.add(character.code_point);
    text.remove_prefix(character.size_bytes);
  }
  splitter.end_word();
  return words;
}

// FNV-1a over words, each with a zero behind it.
uint64_t hash_words(const std::vector<std::string>& words, uint64_t hash) {
  for (const std::string& word : words) {
    for (size_t index = 0; index <= word.size(); ++index) {
      hash = (hash ^ static_cast<uint8_t>(word.c_str()[index])) * 0x100000001B3U;
    }
  }
  return hash;
}

TEST(WordPieceText, every_character_is_treated_as_the_original_does) {
  std::ifstream file(source_dir() + "/tests/engine/text/word_piece_expected.json");
  const auto expected = nlohmann::json::parse(file);
  constexpr uint32_t kBlock = 0x1000;
  for (const auto& entry : expected.at("characters")) {
    const WordPieceRules rules = {.lowers_case = entry.at("lowercase").get<bool>(),
                                  .strips_accents = entry.at("strip_accents").get<bool>()};
    const auto hashes = entry.at("hashes").get<std::vector<std::string>>();
    ASSERT_EQ(hashes.size(), 0x110000 / kBlock);
    for (uint32_t block = 0; block < hashes.size(); ++block) {
      uint64_t hash = 0xCBF29CE484222325U;
      for (uint32_t code = block * kBlock; code < (block + 1) * kBlock; ++code) {
        if (code >= 0xD800 && code < 0xE000) continue;
        std::string text = "aB";
        append_utf8(code, text);
        text += "Cd";
        hash = hash_words(words_of(text, rules), hash);
      }
      EXPECT_EQ(std::to_string(hash), hashes[block]) << "characters from " << block * kBlock;
    }
  }
}

TEST(WordPieceText, texts_are_cut_as_the_original_cuts_them) {
  std::ifstream file(source_dir() + "/tests/engine/text/word_piece_expected.json");
  const auto expected = nlohmann::json::parse(file);
  ASSERT_GT(expected.at("texts").size(), 200U);
  for (const auto& entry : expected.at("texts")) {
    const WordPieceRules rules = {.lowers_case = entry.at("lowercase").get<bool>(),
                                  .strips_accents = entry.at("strip_accents").get<bool>()};
    const auto text = entry.at("text").get<std::string>();
    EXPECT_EQ(words_of(text, rules), entry.at("words").get<std::vector<std::string>>())
        << "'" << text << "'";
  }
}

TEST(WordPieceText, gives_of_a_long_word_only_its_beginning) {
  const WordPieceRules rules = {.characters_max = 4};
  size_t characters = 0;
  std::string text;
  const WordPieceText::TakeWord take_word = [&](const WordPieceText::Word& word) {
    text = word.text;
    characters = word.characters;
  };
  WordPieceText splitter(rules, take_word);
  for (int count = 0; count < 1000; ++count) splitter.add(0x436);
  splitter.end_word();
  EXPECT_EQ(text, "жжжж");
  EXPECT_EQ(characters, 1000U);
}

TEST(WordPieceTokenizer, the_longest_token_is_taken_from_the_left) {
  const auto tokenizer = make(small_word_piece());
  EXPECT_THAT(texts_of(*tokenizer, "hello, Worlds!"),
              ElementsAre("▁hello", "▁,", "▁world", "s", "▁!"));
  EXPECT_THAT(texts_of(*tokenizer, "unaffable hellos"),
              ElementsAre("▁un", "aff", "able", "▁hello", "s"));
  EXPECT_THAT(texts_of(*tokenizer, "中中123"), ElementsAre("▁中", "▁中", "▁12", "3"));
  EXPECT_THAT(texts_of(*tokenizer, "하"), ElementsAre("▁ᄒ", "ᅡ"));
  EXPECT_THAT(texts_of(*tokenizer, ""), ElementsAre());
}

TEST(WordPieceTokenizer, a_word_with_a_part_that_no_token_has_is_unknown_as_a_whole) {
  const auto tokenizer = make(small_word_piece());
  EXPECT_THAT(texts_of(*tokenizer, "hellx hello"), ElementsAre("[UNK]", "▁hello"));
  EXPECT_THAT(texts_of(*tokenizer, "able"), ElementsAre("[UNK]"));
  const std::string longest = "h" + std::string(99, 'i');
  EXPECT_EQ(texts_of(*tokenizer, longest).size(), 100U);
  EXPECT_THAT(texts_of(*tokenizer, longest + "i"), ElementsAre("[UNK]"));
}

TEST(WordPieceTokenizer, case_and_accents_stay_where_the_file_says_so) {
  TokenizerData data = small_word_piece();
  add_token(data, "▁Hé");
  add_token(data, "▁hé");
  EXPECT_THAT(texts_of(*make(data), "HÉLLO"), ElementsAre("▁hello"));
  data.lowercase = false;
  EXPECT_THAT(texts_of(*make(data), "Héllo"), ElementsAre("▁Hé", "llo"));
  data.lowercase = true;
  data.strip_accents = false;
  EXPECT_THAT(texts_of(*make(data), "Héllo"), ElementsAre("▁hé", "llo"));
}

TEST(WordPieceTokenizer, texts_stand_between_the_classifier_and_the_separator) {
  TokenizerData data = small_word_piece();
  EXPECT_THAT(texts_of(*make(data), "hello", {.add_special = true}),
              ElementsAre("[CLS]", "▁hello", "[SEP]"));
  data.bos.reset();
  data.separator.reset();
  data.unknown.reset();
  EXPECT_THAT(texts_of(*make(data), "x", {.add_special = true}),
              ElementsAre("[CLS]", "[UNK]", "[SEP]"));
  EXPECT_THAT(texts_of(*make(data), "hello[SEP]he", {.add_special = false, .parse_special = true}),
              ElementsAre("▁hello", "[SEP]", "▁he"));
}

TEST(WordPieceTokenizer, words_come_back_with_a_space_between_them) {
  const auto tokenizer = make(small_word_piece());
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("Hellos   world", {}), false), "hellos world");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("hello", {}), true), "[CLS]hello[SEP]");
}

TEST(WordPieceTokenizer, bytes_that_are_no_characters_are_left_out) {
  EXPECT_THAT(texts_of(*make(small_word_piece()), "he\xFFllo\xE2\x96 he"),
              ElementsAre("▁hello", "▁he"));
}

TEST(WordPieceTokenizer, stops_where_enough_tokens_are_there) {
  std::string text;
  for (int count = 0; count < 100'000; ++count) text += "he ";
  const auto tokens = make(small_word_piece())->encode(text, {.tokens_max = 10});
  EXPECT_GT(tokens.size(), 10U);
  EXPECT_LT(tokens.size(), 20U);
}

}  // namespace
}  // namespace lockstep
