// Text to tokens and back, for the two families of vocabulary that GGUF files carry:
// SentencePiece-style byte pairs with scores ("llama") and byte-level byte pairs with merges
// ("gpt2") behind a pre-tokenizer pattern.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace lockstep {

using TokenId = int32_t;

enum class TokenType : uint8_t {  // the numbers of tokenizer.ggml.token_type
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// What a GGUF file says of its tokenizer, under the keys tokenizer.ggml.*. Untrusted: make()
// checks it. The text layer knows no files; the model layer fills this in.
struct TokenizerData {
  std::string model;                // "llama" or "gpt2"
  std::string pre;                  // name of the pre-tokenizer; empty if the file has none
  std::vector<std::string> tokens;  // the text of every id
  std::vector<float> scores;        // one per token, or empty
  std::vector<int64_t> types;       // one TokenType per token, or empty
  std::vector<std::string> merges;  // "left right", by rank
  std::optional<TokenId> bos, eos, eot, eom, unknown, padding;
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
};

struct EncodeOptions {
  bool add_special = true;     // the beginning (and end) tokens, where the model wants them
  bool parse_special = false;  // text such as "<|im_end|>" becomes the token instead of its letters
};

// Immutable after make(); every method may be called from several threads.
class Tokenizer {
 public:
  // Checks everything: ids in range, one score and type per token, byte tokens well formed, merges
  // of known tokens, text bounded. Fails with kInvalidInput that names the key and the index.
  static Result<std::unique_ptr<Tokenizer>> make(TokenizerData data);

  virtual ~Tokenizer() = default;

  // `text` is any bytes; invalid UTF-8 is encoded by byte tokens, never refused.
  // Takes time that grows no faster than n log n with the text's length.
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const;

  // The bytes a token stands for: half a character is possible. A control token gives "" unless
  // `special`. An id outside the vocabulary gives "".
  std::string_view piece(TokenId token, bool special) const;

  // All pieces in order; a SentencePiece vocabulary's added first space is taken off again.
  std::string decode(std::span<const TokenId> tokens, bool special) const;

  // Whether decode() takes one leading space off the first ordinary piece.
  bool strips_leading_space() const;

  size_t vocabulary_size() const { return pieces_.size(); }
  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  bool adds_bos() const { return adds_bos_; }
  // Whether a generation ends when the model says this token: eos, eot, eom and their like.
  bool ends_generation(TokenId token) const;
  std::span<const TokenId> end_tokens() const { return end_tokens_; }
  // The id whose text (as the file writes it) is exactly this, if any.
  std::optional<TokenId> find(std::string_view token_text) const;
  // The text of a token as the file writes it, special or not ("<|im_end|>", "▁the").
  std::string_view token_text(TokenId token) const;

 protected:
  Tokenizer() = default;
  // Encodes a stretch of text that holds no special tokens. `first`: it starts the whole text or
  // follows a special token.
  virtual void encode_plain(std::string_view text, bool first,
                            std::vector<TokenId>& tokens) const = 0;

  TokenizerData data_;
  std::vector<std::string> pieces_;  // decoded bytes by id
  std::vector<TokenId> end_tokens_;  // ascending
  std::optional<TokenId> bos_, eos_;
  bool adds_bos_ = false;
  bool adds_eos_ = false;
};

}  // namespace lockstep
