// Unigrams of long texts: the tokens of the straightforward method, with memory for what is not yet
// decided alone.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/text/counted_steps.h"
#include "tests/engine/text/made_tokenizer.h"
#include "tests/engine/text/random_text.h"
#include "tests/engine/text/small_vocabularies.h"
#include "tests/engine/text/straightforward_unigram.h"

namespace lockstep {
namespace {

constexpr EncodeOptions kPlain = {.add_special = false};

// A double array that replaces single bytes: the root's children are at 128 ^ byte, and their
// values from 256 on.
std::vector<uint8_t> character_map(const std::vector<std::pair<char, std::string>>& replaced) {
  std::vector<uint32_t> units(256 + replaced.size());
  units[0] = 128U << 10U;
  std::string texts;
  for (size_t index = 0; index < replaced.size(); ++index) {
    const auto byte = static_cast<uint8_t>(replaced[index].first);
    const auto place = static_cast<uint32_t>(128U ^ byte);
    const auto value = static_cast<uint32_t>(256 + index);
    units[place] = byte | 1U << 8U | (place ^ value) << 10U;
    units[value] = 1U << 31U | static_cast<uint32_t>(texts.size());
    texts += replaced[index].second + '\0';
  }
  const auto unit_bytes = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
  std::vector<uint8_t> bytes(sizeof(uint32_t) + unit_bytes);
  std::memcpy(bytes.data(), &unit_bytes, sizeof(uint32_t));
  std::memcpy(bytes.data() + sizeof(uint32_t), units.data(), unit_bytes);
  bytes.insert(bytes.end(), texts.begin(), texts.end());
  return bytes;
}

TokenizerData empty_unigram(bool with_bytes) {
  TokenizerData data;
  data.model = "t5";
  data.add_space_prefix = true;
  data.remove_extra_whitespaces = true;
  data.unknown = add_token(data, "<unk>", TokenType::kUnknown);
  for (int byte = 0; with_bytes && byte < 256; ++byte) {
    add_token(data, fmt::format("<0x{:02X}>", byte), TokenType::kByte);
  }
  return data;
}

// A piece of a text: mostly of few letters, so that tokens are found in it.
std::string random_part(std::mt19937_64& random) {
  static constexpr std::string_view kParts[] = {"a", "a", "b", "b",  "c",    "d",    " ",
                                                " ", "▁", "é", "中", "\xFF", "\xE2", "\xE2\x96"};
  return std::string(kParts[random() % std::size(kParts)]);
}

std::string random_parts(std::mt19937_64& random, size_t count) {
  std::string text;
  for (; count > 0; --count) text += random_part(random);
  return text;
}

TokenizerData random_unigram(std::mt19937_64& random) {
  TokenizerData data = empty_unigram(random() % 2 == 0);
  data.add_space_prefix = random() % 2 == 0;
  data.remove_extra_whitespaces = random() % 2 == 0;
  for (size_t count = 2 + random() % 30; count > 0; --count) {
    const size_t most = random() % 8 == 0 ? 150 : random() % 4 == 0 ? 12 : 3;
    add_token(data, mark_spaces(random_parts(random, 1 + random() % most)), TokenType::kNormal,
              -static_cast<float>(random() % 40) / 4);
  }
  for (size_t count = random() % 3; count > 0; --count) {
    add_token(data, random_parts(random, 1 + random() % 5), TokenType::kUserDefined);
  }
  if (random() % 2 == 0) {
    data.character_map = character_map(
        {{'c', random_parts(random, random() % 4)}, {'d', random_parts(random, random() % 40)}});
  }
  return data;
}

std::string random_tokens(std::mt19937_64& random, const TokenizerData& data, size_t size) {
  std::string text;
  while (text.size() < size) text += unmark_spaces(data.tokens[random() % data.tokens.size()]);
  return text;
}

TEST(UnigramCut, tokens_are_those_of_the_straightforward_method) {
  const uint64_t seed = 20261127;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const TokenizerData data = random_unigram(random);
    const auto tokenizer = make(data);
    for (int count = 0; count < 5; ++count) {
      // Some are longer than what is read at a time.
      const size_t most = count < 2 ? 9000 : 60;
      const std::string text = count % 2 == 0 ? random_parts(random, random() % most)
                                              : random_tokens(random, data, random() % most);
      const std::vector<TokenId> expected = straightforward_unigrams(data, text);
      ASSERT_EQ(tokenizer->encode(text, kPlain), expected) << "round " << round << ": " << text;
      EncodeOptions options = kPlain;
      options.tokens_max = random() % (expected.size() + 2);
      const std::vector<TokenId> first = tokenizer->encode(text, options);
      if (expected.size() <= options.tokens_max) {
        ASSERT_EQ(first, expected) << "round " << round << ": " << text;
      } else {
        ASSERT_GT(first.size(), options.tokens_max) << "round " << round << ": " << text;
      }
    }
  }
}

// Runs in which tokens cross everywhere, and of which each cut is as good as others.
TEST(UnigramCut, runs_of_a_letter_are_cut_as_by_the_straightforward_method) {
  for (const float score : {-1.0F, -1.1F}) {
    TokenizerData data = empty_unigram(false);
    for (size_t size = 1; size <= 4; ++size) {
      add_token(data, std::string(size, 'a'), TokenType::kNormal, score * static_cast<float>(size));
    }
    for (const size_t size : {3U, 4095U, 4096U, 8193U, 20'001U}) {
      const std::string text(size, 'a');
      EXPECT_EQ(make(data)->encode(text, kPlain), straightforward_unigrams(data, text)) << size;
    }
  }
}

// The most bytes that a text's cut holds.
uint64_t held_bytes(const Tokenizer& tokenizer, std::string_view text,
                    const EncodeOptions& options = kPlain) {
  const CountedSteps steps;
  tokenizer.encode(text, options);
  return steps.most_bytes();
}

std::string repeated(std::string_view unit, size_t size) {
  std::string text;
  while (text.size() < size) text += unit;
  return text;
}

constexpr size_t kFewBytes = size_t{192} << 10U;  // for any length

TEST(UnigramCut, memory_is_for_what_is_not_decided_alone) {
  const size_t size = size_t{1} << 20U;
  const auto words = make(small_unigram(true));
  const auto unknown = make(small_unigram(false));
  EXPECT_GT(held_bytes(*words, repeated("hello world ", size)), 0U);
  for (const char* unit : {"hello world ", "he", "中", "ж", " ", "▁"}) {
    EXPECT_LT(held_bytes(*words, repeated(unit, size)), kFewBytes) << unit;
    EXPECT_LT(held_bytes(*unknown, repeated(unit, size)), kFewBytes) << unit;
  }
  // All of these cross one another, but of two ways one is soon the better one.
  TokenizerData data = empty_unigram(false);
  std::mt19937_64 random(15);
  for (const char first : {'a', 'b', 'c'}) {
    add_token(data, std::string(1, first), TokenType::kNormal, -3);
    for (const char second : {'a', 'b', 'c'}) {
      add_token(data, {first, second}, TokenType::kNormal,
                -2 - static_cast<float>(random() % 100) / 64);
    }
  }
  std::string text;
  while (text.size() < size) text += "abc"[random() % 3];
  EXPECT_LT(held_bytes(*make(data), text), kFewBytes);
}

// A mebibyte of letters that the model replaces by 255 bytes each.
TEST(UnigramCut, what_replacements_widen_is_never_whole) {
  TokenizerData data = small_unigram(true);
  data.character_map = character_map({{'a', repeated("he ", 254)}, {'b', repeated("▁", 255)}});
  const auto tokenizer = make(data);
  EXPECT_LT(held_bytes(*tokenizer, std::string(size_t{1} << 14U, 'a')), kFewBytes);
  EXPECT_LT(held_bytes(*tokenizer, std::string(size_t{1} << 16U, 'b')), kFewBytes);
  EXPECT_EQ(tokenizer->encode(std::string(size_t{1} << 16U, 'b'), kPlain).size(), 0U);
}

// Every fourth place has a way of its own to the text's beginning.
TEST(UnigramCut, a_run_without_a_decision_takes_few_bytes_or_ends_at_the_limit) {
  TokenizerData data = empty_unigram(false);
  for (size_t size = 1; size <= 4; ++size) {
    add_token(data, std::string(size, 'a'), TokenType::kNormal, -1);
  }
  const auto tokenizer = make(data);
  const std::string text(size_t{1} << 20U, 'a');
  EXPECT_LT(held_bytes(*tokenizer, text), 12 * text.size());
  EncodeOptions options = kPlain;
  options.tokens_max = 100;
  EXPECT_LT(held_bytes(*tokenizer, text, options), kFewBytes);
  const size_t count = tokenizer->encode(text, options).size();
  EXPECT_GT(count, 100U);
  EXPECT_LT(count, 10'000U);
}

class CountedPauses final : public PauseHandler {
 public:
  CountedPauses() { pause_handler = this; }
  ~CountedPauses() override { pause_handler = nullptr; }
  CountedPauses(const CountedPauses&) = delete;
  CountedPauses& operator=(const CountedPauses&) = delete;
  void pause(uint64_t) override { ++count; }

  uint64_t count = 0;
};

TEST(UnigramCut, work_grows_with_the_text_and_no_faster) {
  TokenizerData data = empty_unigram(false);
  for (size_t size = 1; size <= 4; ++size) {
    add_token(data, std::string(size, 'a'), TokenType::kNormal, -1);
  }
  const auto tokenizer = make(data);
  const auto pauses = [&](size_t size) {
    const CountedPauses counted;
    tokenizer->encode(std::string(size, 'a'), kPlain);
    return counted.count;
  };
  const uint64_t once = pauses(size_t{1} << 17U);
  EXPECT_GT(once, 0U);
  EXPECT_LT(pauses(size_t{1} << 20U), 9 * once);
}

TEST(UnigramCut, longer_replacements_are_refused) {
  TokenizerData data = small_unigram(true);
  data.character_map = character_map({{'a', std::string(256, 'x')}});
  EXPECT_TRUE(make_tokenizer(data));
  data.character_map = character_map({{'b', "y"}, {'a', std::string(257, 'x')}});
  const auto made = make_tokenizer(data);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message, testing::HasSubstr("precompiled_charsmap"));
  EXPECT_THAT(made.error().message, testing::HasSubstr("257"));
}

}  // namespace
}  // namespace lockstep
