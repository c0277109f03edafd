// Cuts a text into the words within which a byte-level vocabulary's pairs merge, by the patterns
// that a vocabulary was trained with. A GGUF file names them (tokenizer.ggml.pre).
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace lockstep {

class PreTokenizer {
 public:
  // kInvalidInput with the known names for one that is not among them.
  static Result<PreTokenizer> make(std::string_view name);

  // All that make() knows.
  static std::vector<std::string_view> names();

  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // Appends the words of `text`, which together are the text. Bytes that are not UTF-8 form words
  // of their own. Linear in the text's length.
  void split(std::string_view text, std::vector<std::string_view>& words) const;

  // Whether a word that is a token as a whole is taken without merging.
  bool ignores_merges() const;
  // Whether these vocabularies begin texts with a token when the file does not say.
  bool adds_bos() const;

 private:
  struct Patterns;
  explicit PreTokenizer(std::unique_ptr<const Patterns> patterns);
  std::unique_ptr<const Patterns> patterns_;
};

}  // namespace lockstep
