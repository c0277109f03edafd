// Cuts a text into the words within which a vocabulary's pairs merge, by the patterns that it was
// trained with. A GGUF file names them (tokenizer.ggml.pre).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace lockstep {

// How the vocabularies of a pre-tokenizer write their tokens.
enum class TokenAlphabet : uint8_t {
  kBytes,       // GPT-2's: a visible character for each byte
  kCharacters,  // as texts are, with U+2581 for a space; <0xNN> is a byte
  kLetters,     // as texts are, without white space
};

class PreTokenizer {
 public:
  // kInvalidInput with the known names for one that is not among them.
  static Result<PreTokenizer> make(std::string_view name);

  // All that make() knows.
  static std::vector<std::string_view> names();

  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // Appends the words of `text`, which together are the text, but for white space that the alphabet
  // leaves out. Bytes that are not UTF-8 form words of their own. Linear in the text's length.
  void split(std::string_view text, std::vector<std::string_view>& words) const;

  // Whether a word that is a token as a whole is taken without merging.
  bool ignores_merges() const;
  TokenAlphabet alphabet() const;
  // Whether these vocabularies begin texts with a token when the file does not say.
  bool adds_bos() const;
  // Or whatever it says: some files say no, against the model's own tokenizer.
  bool insists_on_bos() const;
  // Whether they have a token between two texts when the file does not say.
  bool adds_separator() const;

 private:
  struct Patterns;
  explicit PreTokenizer(std::unique_ptr<const Patterns> patterns);
  std::unique_ptr<const Patterns> patterns_;
};

}  // namespace lockstep
