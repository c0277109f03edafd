#include "engine/text/tokenizer_data.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "engine/text/special_tokens.h"
#include "engine/text/utf8.h"

namespace lockstep {

namespace {

// Ids are 32 bits signed; the largest vocabularies today are a sixty-fourth of this.
constexpr size_t kVocabularySizeMax = size_t{1} << 24U;
constexpr size_t kMergeCountMax = size_t{1} << 26U;
constexpr size_t kTokenBytesMax = size_t{64} << 10U;
constexpr size_t kVocabularyBytesMax = size_t{1} << 31U;

Result<void> check_bytes(const TokenizerData& data) {
  size_t total = 0;
  for (const std::string& text : data.tokens) total += text.size();
  if (total > kVocabularyBytesMax) {
    return invalid_input("tokenizer.ggml.tokens has {} bytes of texts; at most {} are supported.",
                         total, kVocabularyBytesMax);
  }
  return {};
}

Result<void> check_counts(const TokenizerData& data) {
  const size_t count = data.tokens.size();
  if (count == 0) {
    return invalid_input(
        "tokenizer.ggml.tokens is missing or empty; the file has no vocabulary: use a model file "
        "that carries its tokenizer.");
  }
  if (count > kVocabularySizeMax) {
    return invalid_input("tokenizer.ggml.tokens has {} entries; at most {} are supported.", count,
                         kVocabularySizeMax);
  }
  if (!data.scores.empty() && data.scores.size() != count) {
    return invalid_input(
        "tokenizer.ggml.scores has {} entries for {} tokens; it needs one for each, or none.",
        data.scores.size(), count);
  }
  if (!data.types.empty() && data.types.size() != count) {
    return invalid_input(
        "tokenizer.ggml.token_type has {} entries for {} tokens; it needs one for each, or none.",
        data.types.size(), count);
  }
  if (data.merges.size() > kMergeCountMax) {
    return invalid_input("tokenizer.ggml.merges has {} entries; at most {} are supported.",
                         data.merges.size(), kMergeCountMax);
  }
  return {};
}

Result<void> check_ids(const TokenizerData& data) {
  const std::array<std::pair<std::string_view, std::optional<TokenId>>, 8> ids = {{
      {"bos", data.bos},
      {"eos", data.eos},
      {"eot", data.eot},
      {"eom", data.eom},
      {"unknown", data.unknown},
      {"padding", data.padding},
      {"seperator", data.separator},  // as the file format spells it
      {"cls", data.classifier},
  }};
  for (const auto& [name, id] : ids) {
    if (id && (*id < 0 || static_cast<size_t>(*id) >= data.tokens.size())) {
      return invalid_input(
          "tokenizer.ggml.{}_token_id is {}, but the vocabulary has the ids 0 to {}.", name, *id,
          data.tokens.size() - 1);
    }
  }
  return {};
}

bool is_split_out(int64_t type) {
  return type == static_cast<int64_t>(TokenType::kControl) ||
         type == static_cast<int64_t>(TokenType::kUserDefined) ||
         type == static_cast<int64_t>(TokenType::kUnknown);
}

Result<void> check_type(const TokenizerData& data, size_t index) {
  const int64_t type = data.types[index];
  const std::string& text = data.tokens[index];
  if (type < static_cast<int64_t>(TokenType::kNormal) ||
      type > static_cast<int64_t>(TokenType::kByte)) {
    return invalid_input("tokenizer.ggml.token_type[{}] is {}; known types are 1 to 6.", index,
                         type);
  }
  if (type == static_cast<int64_t>(TokenType::kByte) && !parse_byte_token(text)) {
    return invalid_input(
        "tokenizer.ggml.tokens[{}] is '{}', but its type says that it is a byte: that is written "
        "<0x00> to <0xFF>.",
        index, quote_token(text));
  }
  if (is_split_out(type) && text.size() > SpecialTokens::kTextBytesMax) {
    return invalid_input(
        "tokenizer.ggml.tokens[{}] is a control or user-defined token of {} bytes; such a token "
        "may have {}.",
        index, text.size(), SpecialTokens::kTextBytesMax);
  }
  return {};
}

}  // namespace

std::string mark_spaces(std::string_view text) {
  std::string result;
  for (const char character : text) {
    if (character == ' ') {
      result.append(kSpaceMark);
    } else {
      result.push_back(character);
    }
  }
  return result;
}

std::string unmark_spaces(std::string_view text) {
  std::string result;
  for (size_t position = 0; position < text.size();) {
    const bool is_mark = text.substr(position).starts_with(kSpaceMark);
    result.push_back(is_mark ? ' ' : text[position]);
    position += is_mark ? kSpaceMark.size() : 1;
  }
  return result;
}

std::string quote_token(std::string_view text) {
  return replace_invalid_utf8(text.substr(0, 80));
}

std::optional<uint8_t> parse_byte_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  uint32_t value = 0;
  for (const char digit : text.substr(3, 2)) {
    const std::string_view digits = "0123456789ABCDEF";
    const char upper = digit >= 'a' && digit <= 'f' ? static_cast<char>(digit - 'a' + 'A') : digit;
    const size_t position = digits.find(upper);
    if (position == std::string_view::npos) return std::nullopt;
    value = value * 16 + static_cast<uint32_t>(position);
  }
  return static_cast<uint8_t>(value);
}

Result<void> check_tokenizer_data(const TokenizerData& data) {
  if (auto counts = check_counts(data); !counts) return counts;
  if (auto ids = check_ids(data); !ids) return ids;
  if (auto bytes = check_bytes(data); !bytes) return bytes;
  for (size_t index = 0; index < data.tokens.size(); ++index) {
    if (data.tokens[index].size() > kTokenBytesMax) {
      return invalid_input("tokenizer.ggml.tokens[{}] has {} bytes; a token may have {}.", index,
                           data.tokens[index].size(), kTokenBytesMax);
    }
    if (!data.types.empty()) {
      if (auto type = check_type(data, index); !type) return type;
    }
    if (!data.scores.empty() && std::isnan(data.scores[index])) {
      return invalid_input("tokenizer.ggml.scores[{}] is not a number.", index);
    }
  }
  return {};
}

}  // namespace lockstep
