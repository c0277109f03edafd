#include "engine/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/pause_point.h"
#include "engine/text/model_tokenizer.h"
#include "engine/text/pair_merging.h"
#include "engine/text/utf8.h"
#include "tests/engine/model/gguf_writer.h"
#include "tests/engine/text/made_tokenizer.h"
#include "tests/engine/text/random_text.h"
#include "tests/engine/text/small_vocabularies.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

TEST(SentencePieceTokenizer, the_highest_score_merges_first) {
  const auto tokenizer = make(small_sentence_piece());
  EXPECT_THAT(texts_of(*tokenizer, "hello world"), ElementsAre("▁hello", "▁world"));
  EXPECT_THAT(texts_of(*tokenizer, "the thing"), ElementsAre("▁the", "▁t", "h", "ing"));
  EXPECT_THAT(texts_of(*tokenizer, ""), ElementsAre());
  EXPECT_THAT(texts_of(*tokenizer, " "), ElementsAre("▁▁"));
}

TEST(SentencePieceTokenizer, what_is_no_token_becomes_its_bytes) {
  const auto tokenizer = make(small_sentence_piece());
  EXPECT_THAT(texts_of(*tokenizer, "é"), ElementsAre("▁", "é"));
  EXPECT_THAT(texts_of(*tokenizer, "ж"), ElementsAre("▁", "<0xD0>", "<0xB6>"));
  EXPECT_THAT(texts_of(*tokenizer, "\xFFh"), ElementsAre("▁", "<0xFF>", "h"));
}

TEST(SentencePieceTokenizer, a_vocabulary_without_bytes_falls_back_to_unknown) {
  TokenizerData data;
  data.model = "llama";
  data.unknown = add_token(data, "<unk>", TokenType::kUnknown);
  add_token(data, "▁");
  add_token(data, "a");
  const auto tokenizer = make(data);
  EXPECT_THAT(tokenizer->encode("aéa", {}), ElementsAre(1, 2, 0, 2));
}

TEST(SentencePieceTokenizer, the_added_space_is_taken_off_once) {
  const auto tokenizer = make(small_sentence_piece());
  EXPECT_TRUE(tokenizer->strips_leading_space());
  const std::vector<TokenId> twice = {*tokenizer->find("▁hello"), *tokenizer->find("▁hello")};
  EXPECT_EQ(tokenizer->decode(twice, false), "hello hello");
  const std::vector<TokenId> begun = {*tokenizer->bos(), *tokenizer->find("▁hello")};
  EXPECT_EQ(tokenizer->decode(begun, true), "<s>hello");
  EXPECT_EQ(tokenizer->decode(begun, false), "hello");
  TokenizerData data = small_sentence_piece();
  data.add_space_prefix = false;
  const auto plain = make(data);
  EXPECT_FALSE(plain->strips_leading_space());
  EXPECT_THAT(texts_of(*plain, "hello hello"), ElementsAre("hello", "▁hello"));
  EXPECT_EQ(plain->decode(twice, false), " hello hello");
}

TEST(SentencePieceTokenizer, extra_spaces_go_when_the_file_says_so) {
  TokenizerData data = small_sentence_piece();
  data.remove_extra_whitespaces = true;
  const auto tokenizer = make(data);
  EXPECT_THAT(texts_of(*tokenizer, "  hello   world "), ElementsAre("▁hello", "▁world"));
  EXPECT_THAT(texts_of(*tokenizer, "   "), ElementsAre());
}

TEST(SentencePieceTokenizer, user_defined_tokens_are_taken_whole_and_longest_first) {
  TokenizerData data = small_sentence_piece();
  add_token(data, "hell", TokenType::kUserDefined);
  add_token(data, "hello▁w", TokenType::kUserDefined);
  const auto tokenizer = make(data);
  EXPECT_THAT(texts_of(*tokenizer, "hello world"), ElementsAre("▁", "hello▁w", "orld"));
  EXPECT_THAT(texts_of(*tokenizer, "shell"), ElementsAre("▁", "<0x73>", "hell"));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("hello world", {}), false), "hello world");
}

TEST(SentencePieceTokenizer, unused_tokens_are_cut_into_their_parts_again) {
  TokenizerData data = small_sentence_piece();
  data.types[static_cast<size_t>(*make(small_sentence_piece())->find("▁hello"))] =
      static_cast<int64_t>(TokenType::kUnused);
  const auto tokenizer = make(data);
  EXPECT_THAT(texts_of(*tokenizer, "hello"), ElementsAre("▁", "hello"));
}

// The definition, without a heap: of all neighbouring pairs the best, of equal ones the leftmost.
std::vector<std::string> merge_slowly(const TokenizerData& data, std::vector<std::string> symbols) {
  for (;;) {
    size_t best = symbols.size();
    float best_score = 0;
    for (size_t index = 0; index + 1 < symbols.size(); ++index) {
      const auto found =
          std::find(data.tokens.begin(), data.tokens.end(), symbols[index] + symbols[index + 1]);
      if (found == data.tokens.end()) continue;
      const float score = data.scores[static_cast<size_t>(found - data.tokens.begin())];
      if (best == symbols.size() || score > best_score) {
        best = index;
        best_score = score;
      }
    }
    if (best == symbols.size()) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(SentencePieceTokenizer, the_heap_merges_as_the_definition_does) {
  const uint64_t seed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    // Scores from a small set, both signs, so that many are equal.
    TokenizerData data;
    data.model = "llama";
    data.add_space_prefix = false;
    for (const char* letter : {"a", "b", "c"}) add_token(data, letter);
    for (int count = 0; count < 30; ++count) {
      std::string text;
      for (size_t size = 2 + random() % 4; size > 0; --size) text += "abc"[random() % 3];
      if (std::find(data.tokens.begin(), data.tokens.end(), text) != data.tokens.end()) continue;
      add_token(data, text, TokenType::kNormal, static_cast<float>(random() % 7) - 3.0F);
    }
    std::string text;
    std::vector<std::string> letters;
    for (int size = 0; size < 60; ++size) letters.emplace_back(1, "abc"[random() % 3]);
    for (const std::string& letter : letters) text += letter;
    EXPECT_EQ(texts_of(*make(data), text), merge_slowly(data, letters)) << "round " << round;
  }
}

TEST(PairMerging, looks_up_at_most_three_pairs_per_symbol) {
  for (const uint32_t count : {1U, 2U, 1000U, 100'000U}) {
    PairMerging merging;
    for (uint32_t index = 0; index < count; ++index) merging.append(index, 1, 0);
    size_t lookups = 0;
    merging.run([&](const MergeSymbol& left,
                    const MergeSymbol& right) -> std::optional<PairMerging::Candidate> {
      ++lookups;
      const uint32_t size = left.size_bytes + right.size_bytes;
      return PairMerging::Candidate{size, static_cast<int32_t>(size)};
    });
    EXPECT_LE(lookups, 3 * size_t{count});
    EXPECT_EQ(merging.symbols()[0].size_bytes, count);
  }
}

TEST(BytePairTokenizer, the_lowest_rank_merges_first) {
  const auto tokenizer = make(small_byte_pair());
  EXPECT_THAT(texts_of(*tokenizer, "hello"), ElementsAre("hello"));
  EXPECT_THAT(texts_of(*tokenizer, "the thell"), ElementsAre("t", "he", "Ġthe", "ll"));
  EXPECT_THAT(texts_of(*tokenizer, "é12"), ElementsAre("Ã©", "12"));
  EXPECT_THAT(texts_of(*tokenizer, "\xFF"), ElementsAre("ÿ"));
}

TEST(BytePairTokenizer, a_word_that_is_a_token_needs_no_merges_where_they_are_ignored) {
  EXPECT_THAT(texts_of(*make(small_byte_pair("llama-bpe")), "whole"), ElementsAre("whole"));
  EXPECT_THAT(texts_of(*make(small_byte_pair("gpt-2")), "whole"),
              ElementsAre("w", "h", "o", "l", "e"));
}

TEST(BytePairTokenizer, ordinary_text_never_becomes_a_control_token) {
  TokenizerData data = small_byte_pair("llama-bpe");
  add_token(data, "in<", TokenType::kControl);
  data.merges.push_back("in <");  // a merge that leads to it
  const auto tokenizer = make(data);
  EXPECT_THAT(texts_of(*tokenizer, "in<"), ElementsAre("in", "<"));
  for (const TokenId token : tokenizer->encode("<|endoftext|>", {.add_special = false})) {
    EXPECT_FALSE(tokenizer->ends_generation(token));
  }
}

TEST(BytePairTokenizer, a_byte_without_a_token_is_unknown) {
  TokenizerData data;
  data.model = "gpt2";
  data.pre = "gpt-2";
  add_token(data, "a");
  EXPECT_THAT(make(data)->encode("aba", {}), ElementsAre(0, 0));
  data.unknown = add_token(data, "<unk>", TokenType::kUnknown);
  EXPECT_THAT(make(data)->encode("aba", {}), ElementsAre(0, 1, 0));
}

TEST(CharacterPairTokenizer, characters_merge_across_spaces_but_not_across_line_feeds) {
  const auto tokenizer = make(small_character_pair());
  EXPECT_THAT(texts_of(*tokenizer, "hello the thing"),
              ElementsAre("hello", "▁the", "▁t", "h", "ing"));
  EXPECT_THAT(texts_of(*tokenizer, "wo in"), ElementsAre("w", "o▁", "in"));
  EXPECT_THAT(texts_of(*tokenizer, "     "), ElementsAre("▁▁▁▁", "▁"));
  EXPECT_THAT(texts_of(*tokenizer, "he\n\n\n\nll"), ElementsAre("he", "\n\n", "\n\n", "ll"));
  TokenizerData data = small_character_pair();
  add_token(data, "\n▁");
  data.merges.insert(data.merges.begin(), "\n ▁");
  EXPECT_THAT(texts_of(*make(data), "\n h"), ElementsAre("\n", "▁", "h"));
}

TEST(CharacterPairTokenizer, what_is_no_token_becomes_its_bytes) {
  const auto tokenizer = make(small_character_pair());
  EXPECT_THAT(texts_of(*tokenizer, "é中"), ElementsAre("é", "中"));
  EXPECT_THAT(texts_of(*tokenizer, "hжe"), ElementsAre("h", "<0xD0>", "<0xB6>", "e"));
  EXPECT_THAT(texts_of(*tokenizer, "\xFFh\xC3"), ElementsAre("<0xFF>", "h", "<0xC3>"));
  EXPECT_THAT(texts_of(*tokenizer, "<0x41>"),
              ElementsAre("<0x3C>", "<0x30>", "<0x78>", "<0x34>", "<0x31>", "<0x3E>"));
}

TEST(CharacterPairTokenizer, bytes_do_not_merge_and_are_unknown_where_they_are_missing) {
  TokenizerData data = small_character_pair();
  add_token(data, "<0xD0><0xB6>");
  data.merges.push_back("<0xD0> <0xB6>");
  EXPECT_THAT(texts_of(*make(data), "ж"), ElementsAre("<0xD0>", "<0xB6>"));
  data.tokens[4 + 0xB6] = "gone";
  data.types[4 + 0xB6] = static_cast<int64_t>(TokenType::kNormal);
  data.merges.pop_back();
  EXPECT_THAT(texts_of(*make(data), "hж"), ElementsAre("h", "<0xD0>", "<unk>"));
  data.unknown.reset();
  EXPECT_THAT(texts_of(*make(data), "hж"), ElementsAre("h", "<0xD0>"));
}

TEST(CharacterPairTokenizer, a_space_is_marked_in_ordinary_tokens_alone) {
  TokenizerData data = small_character_pair();
  data.types[static_cast<size_t>(*make(data)->find("▁"))] =
      static_cast<int64_t>(TokenType::kControl);
  const auto tokenizer = make(data);
  EXPECT_THAT(texts_of(*tokenizer, "h w"), ElementsAre("h", "<0x20>", "w"));
  TokenizerData spaced = small_character_pair();
  spaced.tokens[0] = " ";
  spaced.types[0] = static_cast<int64_t>(TokenType::kNormal);
  EXPECT_THAT(texts_of(*make(spaced), "h w"), ElementsAre("h", "▁", "w"));
  const TokenId own = add_token(spaced, "▁x", TokenType::kUserDefined);
  EXPECT_EQ(make(spaced)->piece(own, false), "▁x");
}

TEST(CharacterPairTokenizer, another_file_names_it_by_its_pre_tokenizer_and_calls_bytes_normal) {
  TokenizerData data = small_character_pair();
  const std::string text = "hello жing\n\n  the";
  const auto expected = make(data)->encode(text, {});
  data.model = "gpt2";
  data.pre = "gemma4";
  for (size_t byte = 0; byte < 256; ++byte) {
    data.types[4 + byte] = static_cast<int64_t>(TokenType::kNormal);
  }
  const auto tokenizer = make(data);
  EXPECT_EQ(tokenizer->encode(text, {}), expected);
  EXPECT_EQ(tokenizer->decode(expected, false), text);
}

TEST(CharacterPairTokenizer, texts_begin_with_the_beginning_whatever_the_file_says) {
  TokenizerData data = small_character_pair();
  data.add_bos = false;
  EXPECT_THAT(make(data)->encode("h", {}), ElementsAre(*data.bos, *make(data)->find("h")));
}

class CountedPauses final : public PauseHandler {
 public:
  CountedPauses() { pause_handler = this; }
  ~CountedPauses() override { pause_handler = nullptr; }
  CountedPauses(const CountedPauses&) = delete;
  CountedPauses& operator=(const CountedPauses&) = delete;
  void pause(uint64_t /*steps*/) override { ++count_; }
  size_t count() const { return count_; }

 private:
  size_t count_ = 0;
};

// Merging pauses once in so many pairs that it looks up or takes from its heap.
TEST(CharacterPairTokenizer, merges_of_a_text_without_cuts_grow_with_its_length) {
  const auto tokenizer = make(small_character_pair());
  size_t before = 0;
  for (const size_t size_bytes : {size_t{1} << 19U, size_t{1} << 20U, size_t{1} << 21U}) {
    std::string text;
    while (text.size() < size_bytes) text += "the hello жing   ";
    const CountedPauses pauses;
    const auto tokens = tokenizer->encode(text, {.add_special = false});
    EXPECT_EQ(tokenizer->decode(tokens, false), text);
    EXPECT_GT(pauses.count(), text.size() / 128);
    EXPECT_LE(pauses.count(), before == 0 ? text.size() / 16 : 2 * before + 4);
    before = pauses.count();
  }
}

TEST(Tokenizer, special_tokens_are_read_only_when_asked) {
  for (const TokenizerData& base :
       {small_sentence_piece(), small_byte_pair(), small_character_pair()}) {
    TokenizerData data = base;
    const TokenId end = add_token(data, "<end>", TokenType::kControl);
    const TokenId end_of_turn = add_token(data, "<end>of turn", TokenType::kControl);
    const auto tokenizer = make(data);
    const EncodeOptions parse = {.add_special = false, .parse_special = true};
    EXPECT_THAT(tokenizer->encode("<end><end>of turn<end>", parse),
                ElementsAre(end, end_of_turn, end));
    EXPECT_THAT(tokenizer->encode("<end>", {.add_special = false}),
                testing::Not(testing::Contains(end)));
    EXPECT_EQ(tokenizer->piece(end, true), "<end>");
    EXPECT_EQ(tokenizer->piece(end, false), "");
  }
}

TEST(Tokenizer, white_space_beside_tokens_that_strip_it_goes_with_them) {
  for (const TokenizerData& base : {small_sentence_piece(), small_byte_pair()}) {
    TokenizerData data = base;
    const TokenId mask = add_token(data, "<mask>", TokenType::kControl);
    const TokenId user = add_token(data, "<user>", TokenType::kControl);
    const EncodeOptions parse = {.add_special = false, .parse_special = true};
    const auto kept = make(data);
    data.strip_left = {mask};
    data.strip_right = {user};
    const auto stripped = make(data);
    for (const auto& [text, as] : std::vector<std::pair<std::string, std::string>>{
             {"in \t\n<mask> in", "in<mask> in"},
             {"in <user> \r\nin ", "in <user>in "},
             {"<user>\n", "<user>"},
             {" <mask>", "<mask>"},
             {"<user> <user>  <mask>", "<user><user><mask>"}}) {
      EXPECT_EQ(stripped->encode(text, parse), kept->encode(as, parse)) << text;
      EXPECT_NE(kept->encode(text, parse), kept->encode(as, parse)) << text;
    }
    // Letters of a text are no tokens, and white space beside them stays.
    const std::string letters = "in <mask><user> in";
    EXPECT_EQ(stripped->encode(letters, {}), kept->encode(letters, {}));
    EXPECT_EQ(stripped->least_tokens(1 << 20), 0U);  // a megabyte may come to one
  }
  EXPECT_GT(make(small_sentence_piece())->least_tokens(1 << 20), 0U);
}

TEST(Tokenizer, files_of_some_families_have_tokens_that_strip_white_space) {
  const auto read = [](const std::string& architecture, const std::string& model) {
    const TokenizerData base = small_sentence_piece();
    test::GgufWriter writer;
    writer.add("general.architecture", architecture).add("tokenizer.ggml.model", model);
    std::vector<std::string> tokens = base.tokens;
    std::vector<int32_t> types(base.types.begin(), base.types.end());
    for (const char* const text : {"<mask>", "[MASK]", "<|user|>", "<|endoftext|>"}) {
      tokens.emplace_back(text);
      types.push_back(static_cast<int32_t>(TokenType::kControl));
    }
    writer.add_array("tokenizer.ggml.tokens", tokens).add_array("tokenizer.ggml.token_type", types);
    const test::Folder folder;
    writer.write(folder / "tokens.gguf");
    const auto file = GgufFile::open(folder / "tokens.gguf");
    EXPECT_TRUE(file.has_value());
    return *read_tokenizer_data(*file);
  };
  const auto first = static_cast<TokenId>(small_sentence_piece().tokens.size());
  EXPECT_THAT(read("phi3", "llama").strip_right, ElementsAre(2, first, first + 1, first + 2));
  EXPECT_THAT(read("phi3", "gpt2").strip_right, ElementsAre());
  EXPECT_THAT(read("llama", "llama").strip_right, ElementsAre());
  EXPECT_THAT(read("modern-bert", "gpt2").strip_left, ElementsAre(first + 1));
  EXPECT_THAT(read("jina-bert-v3", "t5").strip_left, ElementsAre(first));
  EXPECT_THAT(read("bert", "t5").strip_left, ElementsAre());
}

TEST(Tokenizer, user_defined_tokens_are_always_read) {
  TokenizerData data = small_byte_pair();
  const TokenId token = add_token(data, "<tool call>", TokenType::kUserDefined);
  const auto tokenizer = make(data);
  EXPECT_THAT(texts_of(*tokenizer, "in<tool call>in"), ElementsAre("in", "<tool call>", "in"));
  EXPECT_EQ(tokenizer->piece(token, false), "<tool call>");
}

TEST(Tokenizer, texts_begin_and_end_as_the_file_says) {
  const auto first_of = [](TokenizerData data) {
    return make(std::move(data))->encode("", {.add_special = true});
  };
  TokenizerData pieces = small_sentence_piece();
  EXPECT_THAT(first_of(pieces), ElementsAre(*pieces.bos));
  pieces.add_bos = false;
  pieces.add_eos = true;
  EXPECT_THAT(first_of(pieces), ElementsAre(*pieces.eos));
  TokenizerData pairs = small_byte_pair();
  EXPECT_THAT(first_of(pairs), ElementsAre());
  pairs.add_bos = true;
  EXPECT_THAT(first_of(pairs), ElementsAre(*pairs.bos));
  pairs.bos.reset();
  EXPECT_THAT(first_of(pairs), ElementsAre());
  TokenizerData llama = small_byte_pair("llama-bpe");
  EXPECT_THAT(first_of(llama), ElementsAre(*llama.bos));
  EXPECT_TRUE(make(llama)->adds_bos());
}

TEST(Tokenizer, generation_ends_with_named_and_well_known_tokens) {
  TokenizerData data = small_byte_pair();
  data.eot = add_token(data, "<stop>", TokenType::kNormal);
  const TokenId not_control = add_token(data, "<|eot_id|>", TokenType::kNormal);
  const TokenId users_own = add_token(data, "<|end|>", TokenType::kUserDefined);
  const auto tokenizer = make(data);
  EXPECT_THAT(tokenizer->end_tokens(),
              ElementsAre(*data.eos, *tokenizer->find("<|im_end|>"), *data.eot, users_own));
  EXPECT_EQ(tokenizer->piece(users_own, /*special=*/false), "");
  EXPECT_NE(tokenizer->encode("<|end|>", {.parse_special = false}), std::vector{users_own});
  EXPECT_TRUE(tokenizer->ends_generation(*data.eos));
  EXPECT_FALSE(tokenizer->ends_generation(not_control));
  EXPECT_FALSE(tokenizer->ends_generation(-1));
}

TEST(Tokenizer, a_turn_of_gemma_4_ends_with_its_end_the_texts_end_or_a_call) {
  TokenizerData data = small_character_pair();
  data.eos.reset();
  data.eot.reset();
  const TokenId call = add_token(data, "<|tool_response>", TokenType::kUserDefined);
  const TokenId not_control = add_token(data, "</s>");
  const auto tokenizer = make(data);
  EXPECT_THAT(tokenizer->end_tokens(),
              ElementsAre(*tokenizer->find("<eos>"), *tokenizer->find("<turn|>"), call));
  EXPECT_FALSE(tokenizer->ends_generation(not_control));
}

TEST(Tokenizer, ids_outside_the_vocabulary_give_nothing) {
  const auto tokenizer = make(small_byte_pair());
  const auto end = static_cast<TokenId>(tokenizer->vocabulary_size());
  for (const TokenId token : {TokenId{-1}, end, INT32_MIN, INT32_MAX}) {
    EXPECT_EQ(tokenizer->piece(token, true), "");
    EXPECT_EQ(tokenizer->token_text(token), "");
  }
  const std::vector<TokenId> tokens = {-1, 'h', end};
  EXPECT_EQ(tokenizer->decode(tokens, true), "h");
}

TEST(Tokenizer, every_byte_string_survives_a_round_trip) {
  const uint64_t seed = 5;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (const TokenizerData& data :
       {small_sentence_piece(), small_character_pair(), small_byte_pair("gpt-2"),
        small_byte_pair("llama-bpe"), small_byte_pair("qwen2"), small_byte_pair("smollm"),
        small_byte_pair("default")}) {
    const auto tokenizer = make(data);
    for (int round = 0; round < 500; ++round) {
      const std::string text = random_mixture(random, random() % 30);
      const auto tokens = tokenizer->encode(text, {});
      ASSERT_EQ(tokenizer->decode(tokens, false), text) << data.pre << ", round " << round;
      std::string joined;
      for (const TokenId token : tokens) joined += tokenizer->piece(token, false);
      ASSERT_EQ(joined, tokenizer->strips_leading_space() && !text.empty() ? " " + text : text);
    }
  }
}

TEST(Tokenizer, a_turn_made_of_messages_ends_with_its_answer_or_its_call_alone) {
  TokenizerData data = small_byte_pair();
  const TokenId message_end = add_token(data, "<|end|>", TokenType::kControl);
  const auto before = make_tokenizer(TokenizerData(data));
  ASSERT_TRUE(before.has_value());
  EXPECT_TRUE((*before)->ends_generation(message_end));
  const TokenId answer_end = add_token(data, "<|return|>", TokenType::kControl);
  const TokenId call_end = add_token(data, "<|call|>", TokenType::kControl);
  data.eot = message_end;  // as files of such models have it
  const auto tokenizer = make_tokenizer(std::move(data));
  ASSERT_TRUE(tokenizer.has_value());
  EXPECT_FALSE((*tokenizer)->ends_generation(message_end));
  EXPECT_TRUE((*tokenizer)->ends_generation(answer_end));
  EXPECT_TRUE((*tokenizer)->ends_generation(call_end));
}

}  // namespace
}  // namespace lockstep
