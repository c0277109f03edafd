// A text as SentencePiece's unigram models cut it, made a part at a time: strings that the model
// replaces are replaced, bytes that are no UTF-8 become U+FFFD, and spaces become U+2581. There is
// one before the text; of those that follow one another, or end the text, only the first where the
// model wants it so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/text/character_map.h"

namespace lockstep {

class UnigramText {
 public:
  struct Rules {
    bool adds_space = true;     // before the text
    bool merges_spaces = true;  // and leaves those away that begin or end the text
  };

  // The map and the text are borrowed.
  UnigramText(const CharacterMap& map, const Rules& rules, std::string_view text);

  // Appends the next `bytes` bytes to `normal`, up to two more, or all that are left.
  void read(size_t bytes, std::string& normal);
  bool is_at_end() const {
    return text_.empty() && part_.empty() && released_marks_ == 0 && held_bytes_ == 0;
  }

 private:
  void take_part();
  void take_byte(std::string& normal);
  // These append something, or hold it back while it may be of the marks that end the text. They
  // return false where marks that were held back come first: then nothing has been done yet.
  bool put_mark(std::string& normal);
  bool put_byte(char byte, std::string& normal);
  bool release(std::string& normal);

  const CharacterMap& map_;
  Rules rules_;
  std::string_view text_;  // what is left of it
  std::string_view part_;  // what is left of what its latest part became
  size_t parts_ = 0;       // that were taken
  bool is_empty_ = true;   // nothing has been put
  bool follows_space_;
  // The marks that end what was put, and how many bytes of another, are held back.
  uint64_t held_marks_ = 0;
  size_t held_bytes_ = 0;
  uint64_t released_marks_ = 0;  // something has followed these
};

}  // namespace lockstep
