// Text to tokens and back, for the kinds of vocabulary that GGUF files carry: SentencePiece-style
// byte pairs with scores ("llama"), byte pairs with merges behind a pre-tokenizer pattern, of bytes
// ("gpt2") or of characters ("gemma4", "whitespace"), WordPiece ("bert"), SentencePiece's unigrams
// ("t5") and PLaMo's ("plamo2").
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/special_tokens.h"
#include "engine/text/token_index.h"
#include "engine/text/tokenizer_data.h"
#include "engine/text/traced_text.h"

namespace lockstep {

struct EncodeOptions {
  bool add_special = true;     // the beginning (and end) tokens, where the model wants them
  bool parse_special = false;  // text such as "<|im_end|>" becomes the token instead of its letters
  // Once there are more, what is left of the text may be left out, and the last may be others.
  size_t tokens_max = std::numeric_limits<size_t>::max();
  // The ranges of foreign text, ascending and apart: no mark() is taken out of there, whole or in
  // part, with parse_special neither.
  std::span<const TextRange> foreign = {};
  // Marks that are taken out of foreign text all the same, ascending.
  std::span<const TokenId> foreign_marks = {};
};

// Made by make_tokenizer() (model_tokenizer.h). Immutable then; every method may be called from
// several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // `text` is any bytes; invalid UTF-8 is never refused: byte pairs encode it by byte tokens, of
  // the others WordPiece leaves it out and unigrams take U+FFFD in its place.
  // Takes time that grows no faster than n log n with the text's length.
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const;

  // Appends two texts that are one sequence: the beginning token, the first text, the end token,
  // the second one and the end token, where the model has these; between the texts of some models
  // there is a separator as well. Control tokens are not parsed. Returns where the second text
  // begins.
  size_t encode_pair(std::string_view first, std::string_view second, size_t tokens_max,
                     std::vector<TokenId>& tokens) const;

  // No text of so many bytes comes to fewer tokens; 0 where nothing can be said: a vocabulary that
  // leaves bytes out.
  size_t least_tokens(size_t text_bytes) const;

  // The bytes a token stands for: half a character is possible. A control token gives "" unless
  // `special`. An id outside the vocabulary gives "".
  std::string_view piece(TokenId token, bool special) const;

  // All pieces in order; an added first space is taken off again. Of vocabularies that change a
  // text before they cut it ("bert", "t5", "whitespace") the changed text comes back.
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
  // Whether a token steers the model and is no part of what is said: control tokens, those that end
  // a generation, and user-defined ones that are written like these ("<|user|>"): some files call
  // the bounds of turns user-defined. Not "<think>" or "<tool_call>", which models also say.
  bool is_mark(TokenId token) const;
  // The id whose text (as the file writes it) is exactly this, if any.
  std::optional<TokenId> find(std::string_view token_text) const;
  // The text of a token as the file writes it, special or not ("<|im_end|>", "▁the").
  std::string_view token_text(TokenId token) const;

 protected:
  Tokenizer() = default;
  // Encodes a slice of text that holds no tokens that encode() splits out. `first`: it starts the
  // whole text or follows such a token. At most kSliceBytesMax long. May stop once there are more
  // than `tokens_max`.
  virtual void encode_plain(std::string_view text, bool first, size_t tokens_max,
                            std::vector<TokenId>& tokens) const = 0;
  static constexpr size_t kSliceBytesMax = size_t{1} << 30U;

  // Takes over checked data: everything but pieces_ and the tokens that are split out.
  void adopt(TokenizerData data, bool adds_bos_by_default);

  // For least_tokens(): called when pieces_ are there. `marks_spaces`: U+2581 in a text is read as
  // a space is.
  void find_longest_token(bool marks_spaces);

  TokenType type(TokenId token) const { return types_[static_cast<size_t>(token)]; }
  // Whether a token never comes from ordinary text, only from encode()'s own splitting.
  bool is_control(TokenId token) const {
    return type(token) == TokenType::kControl || type(token) == TokenType::kUnknown;
  }
  // The texts of all tokens for which `wanted(type)` holds.
  template <typename Wanted>
  SpecialTokens collect_special(const Wanted& wanted) const {
    std::vector<std::pair<std::string, TokenId>> found;
    for (size_t index = 0; index < types_.size(); ++index) {
      const auto token = static_cast<TokenId>(index);
      if (wanted(types_[index])) found.emplace_back(data_.tokens[index], token);
    }
    return SpecialTokens(std::move(found));
  }

  TokenizerData data_;
  std::vector<TokenType> types_;                                      // by id
  std::vector<std::string> pieces_;                                   // decoded bytes by id
  std::vector<TokenId> byte_tokens_ = std::vector<TokenId>(256, -1);  // "<0xNN>"; -1: none
  TokenIndex index_;                     // the texts as the file writes them
  SpecialTokens split_with_special_;     // what encode() splits out with parse_special
  SpecialTokens split_without_special_;  // and without
  std::vector<TokenId> end_tokens_;      // ascending
  std::optional<TokenId> bos_, eos_;
  bool adds_bos_ = false;
  bool adds_eos_ = false;
  bool adds_separator_ = false;  // between two texts

 private:
  void find_end_tokens();
  void find_message_ends();
  void encode_slice(std::string_view text, bool first, size_t tokens_max,
                    std::vector<TokenId>& tokens) const;

  size_t token_bytes_max_ = 0;  // of text that one token stands for; 0: it can be any
};

}  // namespace lockstep
