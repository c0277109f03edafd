// Unigrams: the best cut beside all cuts, spaces, bytes, and strings that the model replaces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/character_map.h"
#include "engine/text/token_index.h"
#include "tests/engine/text/made_tokenizer.h"
#include "tests/engine/text/random_text.h"
#include "tests/engine/text/small_vocabularies.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

TEST(UnigramTokenizer, the_largest_sum_of_scores_wins) {
  const auto tokenizer = make(small_unigram(true));
  EXPECT_THAT(texts_of(*tokenizer, "hello world"), ElementsAre("▁hello", "▁world"));
  EXPECT_THAT(texts_of(*tokenizer, "hell"), ElementsAre("▁", "he", "l", "l"));
  EXPECT_THAT(texts_of(*tokenizer, "thing"), ElementsAre("▁", "t", "h", "ing"));
  EXPECT_THAT(texts_of(*tokenizer, ""), ElementsAre());
}

TEST(UnigramTokenizer, spaces_are_one_or_none_unless_the_file_keeps_them) {
  TokenizerData data = small_unigram(true);
  EXPECT_THAT(texts_of(*make(data), "  hello   world "), ElementsAre("▁hello", "▁world"));
  EXPECT_THAT(texts_of(*make(data), "   "), ElementsAre());
  data.remove_extra_whitespaces = false;
  EXPECT_THAT(texts_of(*make(data), " hello"), ElementsAre("▁", "▁hello"));
  EXPECT_THAT(texts_of(*make(data), " "), ElementsAre("▁", "▁"));
  data.add_space_prefix = false;
  EXPECT_THAT(texts_of(*make(data), "he hello"), ElementsAre("he", "▁hello"));
}

TEST(UnigramTokenizer, what_no_token_has_becomes_its_bytes_or_one_unknown) {
  EXPECT_THAT(texts_of(*make(small_unigram(true)), "heж"),
              ElementsAre("▁", "he", "<0xD0>", "<0xB6>"));
  const auto tokenizer = make(small_unigram(false));
  EXPECT_THAT(texts_of(*tokenizer, "heжжжhe"), ElementsAre("▁", "he", "<unk>", "he"));
  EXPECT_THAT(texts_of(*tokenizer, "ж ж"), ElementsAre("▁", "<unk>", "▁", "<unk>"));
}

TEST(UnigramTokenizer, texts_end_with_the_end_unless_the_file_says_otherwise) {
  TokenizerData data = small_unigram(false);
  EXPECT_THAT(texts_of(*make(data), "hello", {.add_special = true}), ElementsAre("▁hello", "</s>"));
  EXPECT_THAT(texts_of(*make(data), "hello</s>he", {.add_special = false, .parse_special = true}),
              ElementsAre("▁hello", "</s>", "▁", "he"));
  data.add_eos = false;
  EXPECT_THAT(texts_of(*make(data), "hello", {.add_special = true}), ElementsAre("▁hello"));
}

TEST(UnigramTokenizer, user_defined_tokens_are_taken_whole) {
  TokenizerData data = small_unigram(false);
  add_token(data, "llo w", TokenType::kUserDefined);
  EXPECT_THAT(texts_of(*make(data), "hello world"),
              ElementsAre("▁", "he", "llo w", "o", "r", "l", "d"));
}

TEST(UnigramTokenizer, unused_tokens_are_not_taken) {
  TokenizerData data = small_unigram(false);
  const auto hello = static_cast<size_t>(*make(data)->find("▁hello"));
  data.types[hello] = static_cast<int64_t>(TokenType::kUnused);
  EXPECT_THAT(texts_of(*make(data), "hello"), ElementsAre("▁", "he", "llo"));
}

TEST(UnigramTokenizer, texts_come_back_but_for_extra_spaces) {
  const auto tokenizer = make(small_unigram(true));
  const auto tokens = tokenizer->encode(" hello  wжrld ", {});
  EXPECT_EQ(tokenizer->decode(tokens, false), "hello wжrld");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("he\xFFllo", {}), false), "he\uFFFDllo");
}

// The sum of the best of all cuts of `text` into tokens.
double best_score(const TokenizerData& data, std::string_view text, double unknown) {
  std::vector<double> best(text.size() + 1, -1e300);
  best[0] = 0;
  for (size_t end = 1; end <= text.size(); ++end) {
    for (size_t begin = 0; begin < end; ++begin) {
      const std::string_view part = text.substr(begin, end - begin);
      double score = part.size() == 1 ? unknown : -1e300;
      for (size_t id = 0; id < data.tokens.size(); ++id) {
        const bool is_normal = data.types[id] == static_cast<int64_t>(TokenType::kNormal);
        if (is_normal && data.tokens[id] == part) score = static_cast<double>(data.scores[id]);
      }
      best[end] = std::max(best[end], best[begin] + score);
    }
  }
  return best.back();
}

TEST(UnigramTokenizer, no_cut_is_better_than_the_one_that_is_found) {
  const uint64_t seed = 12;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    TokenizerData data;
    data.model = "t5";
    data.add_space_prefix = false;
    data.unknown = add_token(data, "<unk>", TokenType::kUnknown);
    std::vector<std::string> known;
    for (int count = 0; count < 25; ++count) {
      std::string text;
      for (size_t size = 1 + random() % 5; size > 0; --size) text += "abc"[random() % 3];
      if (std::ranges::count(known, text) != 0) continue;
      known.push_back(text);
      // Quarters: sums are exact.
      add_token(data, text, TokenType::kNormal, -static_cast<float>(random() % 40) / 4);
    }
    float least = 0;
    for (size_t id = 1; id < data.scores.size(); ++id) least = std::min(least, data.scores[id]);
    std::string text;
    for (int size = 0; size < 40; ++size) text += "abcd"[random() % 4];
    const auto tokenizer = make(data);
    const double unknown = static_cast<double>(least) - 10;
    double sum = 0;
    size_t known_bytes = 0;
    for (const TokenId token : tokenizer->encode(text, {.add_special = false})) {
      if (token == *data.unknown) continue;  // for any number of letters
      sum += static_cast<double>(data.scores[static_cast<size_t>(token)]);
      known_bytes += data.tokens[static_cast<size_t>(token)].size();
    }
    sum += unknown * static_cast<double>(text.size() - known_bytes);
    EXPECT_EQ(sum, best_score(data, text, unknown)) << "round " << round << ": " << text;
  }
}

TEST(PrefixIndex, finds_every_text_that_another_begins_with) {
  const uint64_t seed = 13;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::string> texts;
    for (int count = 0; count < 40; ++count) {
      texts.push_back(round % 2 == 0 ? random_bytes(random, random() % 4) : "");
      for (size_t size = random() % 6; size > 0; --size) texts.back() += "ab"[random() % 2];
    }
    std::vector<std::pair<std::string_view, int32_t>> tokens;
    for (size_t id = 0; id < texts.size(); ++id) tokens.emplace_back(texts[id], id);
    const PrefixIndex index(tokens);
    for (const std::string& text : texts) {
      const std::string longer = text + "abab";
      std::vector<std::pair<size_t, int32_t>> found;
      index.for_each_prefix(
          longer, [&](size_t size_bytes, int32_t token) { found.emplace_back(size_bytes, token); });
      std::vector<std::pair<size_t, int32_t>> expected;
      for (size_t size = 1; size <= longer.size(); ++size) {
        const auto same = std::ranges::find(texts, longer.substr(0, size));
        if (same != texts.end()) expected.emplace_back(size, same - texts.begin());
      }
      EXPECT_EQ(found, expected) << "round " << round;
    }
  }
}

TEST(PrefixIndex, takes_little_for_long_texts) {
  std::vector<std::string> texts;
  for (size_t count = 1; count <= 100; ++count) texts.emplace_back(10'000 * count, 'a');
  std::vector<std::pair<std::string_view, int32_t>> tokens;
  for (size_t id = 0; id < texts.size(); ++id) tokens.emplace_back(texts[id], id);
  const PrefixIndex index(tokens);
  EXPECT_LT(index.size_bytes(), 100 * 100U);
  size_t count = 0;
  index.for_each_prefix(texts.back() + "b", [&](size_t size_bytes, int32_t token) {
    EXPECT_EQ(size_bytes, texts[static_cast<size_t>(token)].size());
    EXPECT_EQ(token, static_cast<int32_t>(count++));
  });
  EXPECT_EQ(count, 100U);
}

// "a" is replaced by "x" and "ab" by "y", in a double array by hand: the root's children are found
// at 128 ^ byte, those of "a" at its place ^ 1 ^ byte.
std::vector<uint8_t> small_character_map() {
  constexpr uint32_t kHasValue = 1U << 8U;
  constexpr uint32_t kValue = 1U << 31U;
  std::vector<uint32_t> units(256);
  units[0] = 128U << 10U;
  const uint32_t a = 128U ^ 'a';
  units[a] = 'a' | kHasValue | (2U << 10U);
  units[a ^ 2U] = kValue | 0U;
  const uint32_t b = a ^ 2U ^ 'b';
  units[b] = 'b' | kHasValue | (4U << 10U);
  units[b ^ 4U] = kValue | 2U;
  const auto unit_bytes = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
  std::vector<uint8_t> bytes(sizeof(uint32_t) + unit_bytes);
  std::memcpy(bytes.data(), &unit_bytes, sizeof(uint32_t));
  std::memcpy(bytes.data() + sizeof(uint32_t), units.data(), unit_bytes);
  for (const char character : {'x', '\0', 'y', '\0'}) {
    bytes.push_back(static_cast<uint8_t>(character));
  }
  return bytes;
}

TEST(CharacterMap, replaces_the_longest_string) {
  const auto map = CharacterMap::make(small_character_map());
  ASSERT_TRUE(map) << map.error().message;
  ASSERT_TRUE(map->find("ac"));
  EXPECT_EQ(map->find("ac")->text, "x");
  EXPECT_EQ(map->find("abc")->text, "y");
  EXPECT_EQ(map->find("abc")->size_bytes, 2U);
  EXPECT_FALSE(map->find("ba"));
  EXPECT_FALSE(map->find(""));
  EXPECT_FALSE(CharacterMap().find("a"));
}

TEST(CharacterMap, whatever_its_bytes_it_is_refused_or_stays_within_them) {
  const uint64_t seed = 14;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint8_t> bytes = small_character_map();
    if (round % 3 == 0) bytes.resize(random() % bytes.size());
    for (size_t count = random() % 8; count > 0 && !bytes.empty(); --count) {
      bytes[random() % (round % 2 == 0 ? bytes.size() : std::min<size_t>(bytes.size(), 600))] =
          static_cast<uint8_t>(random());
    }
    const auto map = CharacterMap::make(bytes);
    if (!map) {
      EXPECT_THAT(map.error().message, testing::HasSubstr("precompiled_charsmap"));
      continue;
    }
    for (const std::string text : {"ab", "a", "b\xFF", "aaaa", "abab"}) {
      const auto found = map->find(text);
      EXPECT_LE(found ? found->size_bytes : 0, text.size());
    }
  }
}

}  // namespace
}  // namespace lockstep
