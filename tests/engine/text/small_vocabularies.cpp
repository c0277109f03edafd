#include "tests/engine/text/small_vocabularies.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <utility>

namespace lockstep {
namespace {

using Merge = std::pair<std::string_view, std::string_view>;

// Each with the token that it makes.
void add_merges(TokenizerData& data, std::span<const Merge> merges) {
  for (const auto& [left, right] : merges) {
    data.merges.push_back(fmt::format("{} {}", left, right));
    add_token(data, fmt::format("{}{}", left, right));
  }
}

}  // namespace

TokenId add_token(TokenizerData& data, std::string text, TokenType type, float score) {
  data.tokens.push_back(std::move(text));
  data.types.push_back(static_cast<int64_t>(type));
  const bool has_scores = data.model == "llama" || data.model == "t5" || data.model == "plamo2";
  if (has_scores) data.scores.push_back(score);
  return static_cast<TokenId>(data.tokens.size() - 1);
}

TokenizerData small_sentence_piece() {
  TokenizerData data;
  data.model = "llama";
  data.unknown = add_token(data, "<unk>", TokenType::kUnknown);
  data.bos = add_token(data, "<s>", TokenType::kControl);
  data.eos = add_token(data, "</s>", TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) {
    add_token(data, fmt::format("<0x{:02X}>", byte), TokenType::kByte);
  }
  // The higher the score the earlier a token is merged.
  float score = -1;
  for (const char* text : {"he", "ll", "▁t", "▁the", "llo", "hello", "▁hello", "▁▁", "▁▁▁▁", "in",
                           "ing", "▁w", "or", "ld", "orld", "▁world"}) {
    add_token(data, text, TokenType::kNormal, score);
    score -= 1;
  }
  for (const char* text : {"▁", "h", "e", "l", "o", "t", "i", "n", "g", "w", "r", "d", "é", "中"}) {
    add_token(data, text, TokenType::kNormal, score);
    score -= 1;
  }
  return data;
}

std::string byte_level_character(unsigned byte) {
  // Bytes that have no visible character in Latin-1 are U+0100 and on, in their order.
  const auto is_visible = [](unsigned value) {
    return (value > 0x20 && value < 0x7F) || (value > 0xA0 && value != 0xAD);
  };
  unsigned code_point = byte;
  if (!is_visible(byte)) {
    code_point = 0x100;
    for (unsigned before = 0; before < byte; ++before) code_point += is_visible(before) ? 0 : 1;
  }
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0U | (code_point >> 6U)),
          static_cast<char>(0x80U | (code_point & 0x3FU))};
}

TokenizerData small_byte_pair(std::string_view pre) {
  TokenizerData data;
  data.model = "gpt2";
  data.pre = pre;
  for (unsigned byte = 0; byte < 256; ++byte) add_token(data, byte_level_character(byte));
  static constexpr std::array<Merge, 12> kMerges = {{
      {"h", "e"},
      {"l", "l"},
      {"Ġ", "t"},
      {"Ġt", "he"},
      {"ll", "o"},
      {"he", "llo"},
      {"Ġ", "Ġ"},
      {"ĠĠ", "ĠĠ"},
      {"i", "n"},
      {"in", "g"},
      {"1", "2"},
      {"Ã", "©"},
  }};
  add_merges(data, kMerges);
  add_token(data, "whole");  // no merge leads here
  data.bos = add_token(data, "<|begin|>", TokenType::kControl);
  data.eos = add_token(data, "<|endoftext|>", TokenType::kControl);
  add_token(data, "<|im_end|>", TokenType::kControl);
  return data;
}

TokenizerData small_character_pair() {
  TokenizerData data;
  data.model = "gemma4";
  data.padding = add_token(data, "<pad>", TokenType::kControl);
  data.eos = add_token(data, "<eos>", TokenType::kControl);
  data.bos = add_token(data, "<bos>", TokenType::kControl);
  data.unknown = add_token(data, "<unk>", TokenType::kUnknown);
  for (int byte = 0; byte < 256; ++byte) {
    add_token(data, fmt::format("<0x{:02X}>", byte), TokenType::kByte);
  }
  for (const char* text : {"\n", "▁", "h", "e", "l", "o", "t", "i", "n", "g", "w", "é", "中"}) {
    add_token(data, text);
  }
  static constexpr std::array<Merge, 13> kMerges = {{
      {"h", "e"},
      {"l", "l"},
      {"▁", "t"},
      {"▁t", "he"},
      {"ll", "o"},
      {"he", "llo"},
      {"▁", "▁"},
      {"▁▁", "▁▁"},
      {"i", "n"},
      {"in", "g"},
      {"o", "▁"},
      {"\n", "\n"},
      {"\n\n", "\n"},
  }};
  add_merges(data, kMerges);
  add_token(data, "<|turn>", TokenType::kControl);
  data.eot = add_token(data, "<turn|>", TokenType::kControl);
  return data;
}

TokenizerData small_word_piece() {
  TokenizerData data;
  data.model = "bert";
  data.padding = add_token(data, "[PAD]", TokenType::kControl);
  data.unknown = add_token(data, "[UNK]", TokenType::kControl);
  data.bos = add_token(data, "[CLS]", TokenType::kControl);
  data.separator = add_token(data, "[SEP]", TokenType::kControl);
  for (const char* text :
       {"▁hello", "▁he", "▁h",  "▁the", "▁world", "▁un", "▁i", "▁,",  "▁!", "▁中", "▁12",
        "▁ᄒ",    "ll",  "llo", "o",    "able",   "aff", "s",  "ing", "3",  "ᅡ",  "i"}) {
    add_token(data, text);
  }
  return data;
}

TokenizerData small_unigram(bool with_bytes) {
  TokenizerData data;
  data.model = "t5";
  add_token(data, "<pad>", TokenType::kControl);
  data.eos = add_token(data, "</s>", TokenType::kControl);
  data.unknown = add_token(data, "<unk>", TokenType::kUnknown);
  for (int byte = 0; with_bytes && byte < 256; ++byte) {
    add_token(data, fmt::format("<0x{:02X}>", byte), TokenType::kByte);
  }
  // The larger the sum of the scores the better the cut.
  float score = -2;
  for (const char* text : {"▁the", "▁hello", "▁world", "ing", "▁", "he", "llo", "l", "o", "h",
                           "e",    "t",      "i",      "n",   "g", "w",  "r",   "d", "é", "中"}) {
    add_token(data, text, TokenType::kNormal, score);
    score -= 0.5F;
  }
  return data;
}

TokenizerData small_plamo() {
  TokenizerData data;
  data.model = "plamo2";
  data.unknown = add_token(data, "<|plamo:unk|>", TokenType::kUnknown);
  data.bos = add_token(data, "<|plamo:bos|>", TokenType::kControl);
  data.eos = add_token(data, "<|plamo:eos|>", TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) {
    add_token(data, fmt::format("<0x{:02X}>", byte), TokenType::kByte);
  }
  float score = -2;
  for (const char* text : {" the", "hello", " world", "ing", " ", "he", "llo", "l", "o", "h",
                           "e",    "t",     "i",      "n",   "g", "w",  "r",   "d", "é", "中"}) {
    add_token(data, text, TokenType::kNormal, score);
    score -= 0.5F;
  }
  return data;
}

}  // namespace lockstep
