#include "engine/text/unigram_text.h"

#include <utility>

#include "engine/base/pause_point.h"
#include "engine/text/tokenizer_data.h"
#include "engine/text/utf8.h"

namespace lockstep {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr size_t kPartsPerPause = 32;                      // some microseconds

}  // namespace

UnigramText::UnigramText(const CharacterMap& map, const Rules& rules, std::string_view text)
    : map_(map), rules_(rules), text_(text), follows_space_(rules.merges_spaces) {
  if (!rules.adds_space || rules.merges_spaces || text.empty()) return;
  released_marks_ = 1;
  is_empty_ = false;
}

void UnigramText::read(size_t bytes, std::string& normal) {
  const size_t end = normal.size() + bytes;
  while (normal.size() < end) {
    if (released_marks_ > 0) {
      normal.append(kSpaceMark);
      --released_marks_;
    } else if (!part_.empty()) {
      take_byte(normal);
    } else if (!text_.empty()) {
      take_part();
    } else if (held_bytes_ > 0) {
      release(normal);
    } else {
      return;
    }
  }
}

void UnigramText::take_part() {
  if (++parts_ % kPartsPerPause == 0) pause_point();
  size_t size_bytes = 1;
  if (const auto replaced = map_.find(text_)) {
    part_ = replaced->text;
    size_bytes = replaced->size_bytes;
  } else if (const DecodedCharacter character = decode_utf8(text_); character.valid) {
    part_ = text_.substr(0, character.size_bytes);
    size_bytes = character.size_bytes;
  } else {
    part_ = kReplacement;
  }
  text_.remove_prefix(size_bytes);
}

void UnigramText::take_byte(std::string& normal) {
  const char byte = part_.front();
  const bool is_space = byte == ' ';
  if (!is_space || !follows_space_) {
    if (std::exchange(is_empty_, false) && rules_.adds_space) put_mark(normal);
    if (!(is_space ? put_mark(normal) : put_byte(byte, normal))) return;
    follows_space_ = is_space && rules_.merges_spaces;
  }
  part_.remove_prefix(1);
}

bool UnigramText::put_mark(std::string& normal) {
  if (!rules_.merges_spaces) {
    normal.append(kSpaceMark);
    return true;
  }
  if (held_bytes_ > 0 && !release(normal)) return false;
  ++held_marks_;
  return true;
}

bool UnigramText::put_byte(char byte, std::string& normal) {
  if (!rules_.merges_spaces) {
    normal.push_back(byte);
    return true;
  }
  if (byte == kSpaceMark[held_bytes_]) {
    held_bytes_ = (held_bytes_ + 1) % kSpaceMark.size();
    if (held_bytes_ == 0) ++held_marks_;
    return true;
  }
  if (!release(normal)) return false;
  if (byte == kSpaceMark.front()) {
    held_bytes_ = 1;
  } else {
    normal.push_back(byte);
  }
  return true;
}

bool UnigramText::release(std::string& normal) {
  if (held_marks_ > 0) {
    released_marks_ = std::exchange(held_marks_, 0);
    return false;
  }
  normal.append(kSpaceMark.substr(0, std::exchange(held_bytes_, 0)));
  return true;
}

}  // namespace lockstep
