// A file's tokenizer as it stands there, and its checks before a Tokenizer is made of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/base/token_id.h"

namespace lockstep {

enum class TokenType : uint8_t {  // the numbers of tokenizer.ggml.token_type
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// The character that stands for a space in the tokens of several tokenizers: U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
std::string mark_spaces(std::string_view text);
std::string unmark_spaces(std::string_view text);

// The tokenizer of a GGUF file, under the keys tokenizer.ggml.*. Untrusted: see
// check_tokenizer_data().
struct TokenizerData {
  std::string model;                // "llama", "gpt2", "gemma4", "whitespace", "bert" or "t5"
  std::string pre;                  // name of the pre-tokenizer; empty if the file has none
  std::vector<std::string> tokens;  // the text of every id
  std::vector<float> scores;        // one per token, or empty
  std::vector<int64_t> types;       // one TokenType per token, or empty
  std::vector<std::string> merges;  // "left right", by rank
  std::optional<TokenId> bos, eos, eot, eom, unknown, padding, separator, classifier;
  std::optional<bool> add_bos, add_eos, add_separator, add_space_prefix, remove_extra_whitespaces;
  std::optional<bool> lowercase, strip_accents;  // of "bert"; the first of "whitespace"
  std::vector<uint8_t> character_map;            // of "t5": CharacterMap's bytes, or empty
  // Tokens that take the white space before, or behind, them along where they are split out of a
  // text. Ascending; no key says it.
  std::vector<TokenId> strip_left, strip_right;
};

// Ids in range, one score and type per token, byte tokens well formed, texts bounded. Merges and
// names are checked where they are looked up. kInvalidInput names the key and the index.
Result<void> check_tokenizer_data(const TokenizerData& data);

// The byte of a token written "<0xNN>", if it is written so.
std::optional<uint8_t> parse_byte_token(std::string_view text);

// `text` for an error message: valid UTF-8, at most 80 bytes of it.
std::string quote_token(std::string_view text);

}  // namespace lockstep
