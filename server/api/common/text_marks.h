// Marks in text that comes in pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace lockstep {

inline constexpr std::string_view kTurnSpace = " \n\t\r";

inline bool is_turn_space(char letter) {
  return kTurnSpace.find(letter) != std::string_view::npos;
}

// Whether a function's name may have the letter.
inline bool is_name_letter(char letter) {
  const bool word = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                    (letter >= '0' && letter <= '9');
  return word || letter == '_' || letter == '-' || letter == '.';
}

// How many bytes at the end of `text` may be the beginning of `mark`.
inline size_t begun_bytes(std::string_view text, std::string_view mark) {
  if (mark.empty()) return 0;
  for (size_t length = std::min(text.size(), mark.size() - 1); length > 0; --length) {
    if (text.ends_with(mark.substr(0, length))) return length;
  }
  return 0;
}

// Whether all of `text` may be the beginning of `mark`.
inline bool may_become(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() && mark.starts_with(text);
}

// The bytes at the begin of `text` that are `mark`, whatever white space is before and within them;
// 0 if they are not. Sets `may_become` where more text may make them so.
inline size_t spaced_mark_bytes(std::string_view text, std::string_view mark, bool& may_become) {
  may_become = false;
  size_t matched = 0;
  for (size_t index = 0; index < text.size() && matched < mark.size(); ++index) {
    if (text[index] == mark[matched]) {
      if (++matched == mark.size()) return index + 1;
    } else if (!is_turn_space(text[index])) {
      return 0;
    }
  }
  may_become = matched < mark.size();
  return 0;
}

// Without white space at its ends.
inline std::string_view without_space(std::string_view text) {
  text = text.substr(0, text.find_last_not_of(kTurnSpace) + 1);
  text.remove_prefix(std::min(text.find_first_not_of(kTurnSpace), text.size()));
  return text;
}

}  // namespace lockstep
