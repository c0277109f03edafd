#include "engine/text/jinja/characters.h"

#include <algorithm>
#include <cstring>

#include "engine/text/jinja/unicode_table.h"
#include "engine/text/utf8.h"

namespace lockstep::jinja {

namespace {

constexpr uint32_t kSigma = 0x3A3;
constexpr uint32_t kFinalSigma = 0x3C2;

// Appends what the table makes of a character; false when it says nothing of it.
bool append_case(const CaseTable& table, uint32_t code_point, std::string& text) {
  const auto several =
      std::ranges::lower_bound(table.several, code_point, {}, &LongCase::code_point);
  if (several != table.several.end() && several->code_point == code_point) {
    text += several->text;
    return true;
  }
  const CaseRange* range = find_case(table.ranges, code_point);
  if (range == nullptr) return false;
  append_utf8(static_cast<uint32_t>(static_cast<int64_t>(code_point) + range->delta), text);
  return true;
}

void append_upper(uint32_t code_point, std::string& text) {
  if (!append_case(character_tables().to_upper, code_point, text)) append_utf8(code_point, text);
}

void append_lower(uint32_t code_point, std::string& text) {
  if (!append_case(character_tables().to_lower, code_point, text)) append_utf8(code_point, text);
}

void append_title(uint32_t code_point, std::string& text) {
  if (!append_case(character_tables().to_title, code_point, text)) append_upper(code_point, text);
}

bool is_cased(uint32_t code_point) {
  return is_lower(code_point) || is_upper(code_point) || is_title(code_point);
}

// A capital sigma that ends a word has a lower case of its own.
bool is_final_sigma(std::string_view before, std::string_view after) {
  if (before.empty() || !is_cased(last_character(before).code_point)) return false;
  return after.empty() || !is_cased(first_character(after).code_point);
}

void append_lower_at(std::string_view text, size_t offset, Character character,
                     std::string& result) {
  if (character.code_point == kSigma &&
      is_final_sigma(text.substr(0, offset), text.substr(offset + character.bytes))) {
    append_utf8(kFinalSigma, result);
  } else {
    append_lower(character.code_point, result);
  }
}

}  // namespace

Character first_character(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  if (byte < 0x80) return {byte, 1};
  const DecodedCharacter decoded = decode_utf8(text);
  return {decoded.code_point, decoded.size_bytes};
}

Character last_character(std::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0U) == 0x80U) --start;
  return first_character(text.substr(start));
}

size_t character_count(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }));
}

size_t byte_offset(std::string_view text, size_t character_index) {
  size_t offset = 0;
  while (character_index > 0 && offset < text.size()) {
    ++offset;
    while (offset < text.size() && (static_cast<unsigned char>(text[offset]) & 0xC0U) == 0x80U) {
      ++offset;
    }
    --character_index;
  }
  return offset;
}

bool is_space(uint32_t code_point) {
  if (code_point < 0x80) {
    return code_point == ' ' || (code_point >= 0x09 && code_point <= 0x0D) ||
           (code_point >= 0x1C && code_point <= 0x1F);
  }
  return code_point == 0x85 || code_point == 0xA0 || code_point == 0x1680 ||
         (code_point >= 0x2000 && code_point <= 0x200A) || code_point == 0x2028 ||
         code_point == 0x2029 || code_point == 0x202F || code_point == 0x205F ||
         code_point == 0x3000;
}

bool is_alphabetic(uint32_t code_point) {
  return contains(character_tables().alphabetic, code_point);
}
bool is_decimal(uint32_t code_point) {
  return contains(character_tables().decimal, code_point);
}
bool is_digit(uint32_t code_point) {
  return contains(character_tables().digit, code_point);
}
bool is_numeric(uint32_t code_point) {
  return contains(character_tables().numeric, code_point);
}
bool is_alphanumeric(uint32_t code_point) {
  return is_alphabetic(code_point) || is_numeric(code_point);
}
bool is_printable(uint32_t code_point) {
  return contains(character_tables().printable, code_point);
}
bool is_lower(uint32_t code_point) {
  return contains(character_tables().lower, code_point);
}
bool is_upper(uint32_t code_point) {
  return contains(character_tables().upper, code_point);
}
bool is_title(uint32_t code_point) {
  return !is_upper(code_point) && !is_lower(code_point) &&
         find_case(character_tables().to_lower.ranges, code_point) != nullptr;
}

std::string to_upper(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    append_upper(character.code_point, result);
    text.remove_prefix(character.bytes);
  }
  return result;
}

std::string to_lower(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t offset = 0; offset < text.size();) {
    const Character character = first_character(text.substr(offset));
    append_lower_at(text, offset, character, result);
    offset += character.bytes;
  }
  return result;
}

std::string to_title(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  bool inside_word = false;
  for (size_t offset = 0; offset < text.size();) {
    const Character character = first_character(text.substr(offset));
    if (inside_word) {
      append_lower_at(text, offset, character, result);
    } else {
      append_title(character.code_point, result);
    }
    inside_word = is_cased(character.code_point);
    offset += character.bytes;
  }
  return result;
}

std::string capitalize(std::string_view text) {
  std::string result;
  if (text.empty()) return result;
  const Character character = first_character(text);
  append_title(character.code_point, result);
  for (size_t offset = character.bytes; offset < text.size();) {
    const Character next = first_character(text.substr(offset));
    append_lower_at(text, offset, next, result);
    offset += next.bytes;
  }
  return result;
}

std::string swap_case(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t offset = 0; offset < text.size();) {
    const Character character = first_character(text.substr(offset));
    if (is_upper(character.code_point)) {
      append_lower_at(text, offset, character, result);
    } else if (is_lower(character.code_point)) {
      append_upper(character.code_point, result);
    } else {
      append_utf8(character.code_point, result);
    }
    offset += character.bytes;
  }
  return result;
}

size_t find_text(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const std::string_view rest = text.substr(from);
  if (needle.empty()) return from;
  if (rest.size() < needle.size()) return std::string_view::npos;
  // The C library's search is linear; the standard library's is not.
  const void* found = memmem(rest.data(), rest.size(), needle.data(), needle.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t find_last_text(std::string_view text, std::string_view needle) {
  if (needle.empty()) return text.size();
  const std::string backwards(text.rbegin(), text.rend());
  const size_t found = find_text(backwards, std::string(needle.rbegin(), needle.rend()));
  if (found == std::string_view::npos) return found;
  return text.size() - found - needle.size();
}

size_t leading_space(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    const Character character = first_character(text.substr(offset));
    if (!is_space(character.code_point)) break;
    offset += character.bytes;
  }
  return offset;
}

std::string_view strip_left(std::string_view text) {
  return text.substr(leading_space(text));
}

std::string_view strip_right(std::string_view text) {
  while (!text.empty()) {
    const Character character = last_character(text);
    if (!is_space(character.code_point)) break;
    text.remove_suffix(character.bytes);
  }
  return text;
}

Line first_line(std::string_view text) {
  for (size_t offset = 0; offset < text.size();) {
    const Character character = first_character(text.substr(offset));
    const uint32_t code_point = character.code_point;
    if (code_point == '\r' && text.substr(offset).starts_with("\r\n")) return {offset, offset + 2};
    if ((code_point >= 0x0A && code_point <= 0x0D) || (code_point >= 0x1C && code_point <= 0x1E) ||
        code_point == 0x85 || code_point == 0x2028 || code_point == 0x2029) {
      return {offset, offset + character.bytes};
    }
    offset += character.bytes;
  }
  return {text.size(), text.size()};
}

}  // namespace lockstep::jinja
