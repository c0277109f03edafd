// A text's words as WordPiece vocabularies of BERT's kind take them: control characters are
// removed, ideographs and punctuation are words of their own, accents and case go where the
// vocabulary has none. Source: BERT's normalizer and pre-tokenizer in Hugging Face's tokenizers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

// Appends a character's lower case, which may be two characters.
void append_lower_case(uint32_t code_point, std::string& text);

struct WordPieceRules {
  bool lowers_case = true;
  bool strips_accents = true;
  size_t characters_max = 100;  // of a word: longer ones need not be given whole
};

// Takes characters and gives words.
class WordPieceText {
 public:
  // A word of at least one character, of which `text` holds the first characters_max at most.
  struct Word {
    std::string_view text;
    size_t characters = 0;  // that it has
  };
  using TakeWord = std::function<void(const Word&)>;

  // Both must outlive this.
  WordPieceText(const WordPieceRules& rules, const TakeWord& take_word)
      : rules_(rules), take_word_(take_word) {}

  // The next character of the text, as it stands there.
  void add(uint32_t code_point);
  // The end of a word: of the text, too.
  void end_word();

 private:
  void decompose(uint32_t code_point);
  void append_part(uint32_t code_point);
  void flush_marks();
  void append_final(uint32_t code_point);
  void append_to_word(uint32_t code_point);
  void give_word();

  const WordPieceRules& rules_;
  const TakeWord& take_word_;
  std::string word_;
  size_t characters_ = 0;
  // Marks that wait for the next starter, which ends their order: combining class, character.
  std::vector<std::pair<uint8_t, uint32_t>> marks_;
};

}  // namespace lockstep
