// Strings as Python sees them: sequences of code points, with Unicode's cases and properties.
// All strings here are valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::jinja {

// The code point at text[0] and its bytes; text is not empty.
struct Character {
  uint32_t code_point;
  size_t bytes;
};
Character first_character(std::string_view text);
Character last_character(std::string_view text);

size_t character_count(std::string_view text);
// The byte offset of the character of that index; the text's size when it has no more characters.
size_t byte_offset(std::string_view text, size_t character_index);

bool is_space(uint32_t code_point);
bool is_alphabetic(uint32_t code_point);
bool is_decimal(uint32_t code_point);
bool is_digit(uint32_t code_point);
bool is_numeric(uint32_t code_point);
bool is_alphanumeric(uint32_t code_point);
bool is_printable(uint32_t code_point);
bool is_lower(uint32_t code_point);
bool is_upper(uint32_t code_point);
bool is_title(uint32_t code_point);  // a letter in title case, such as U+01C5

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);    // str.title()
std::string capitalize(std::string_view text);  // str.capitalize()
std::string swap_case(std::string_view text);

// The offset of the needle's first or last occurrence; npos if there is none. In linear time for
// any texts.
size_t find_text(std::string_view text, std::string_view needle, size_t from = 0);
size_t find_last_text(std::string_view text, std::string_view needle);

// The bytes of white space at the beginning.
size_t leading_space(std::string_view text);
std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);

// Bytes to the end of the line that begins at text[0], with and without its line break, as
// str.splitlines() breaks lines.
struct Line {
  size_t bytes;
  size_t bytes_with_break;
};
Line first_line(std::string_view text);

}  // namespace lockstep::jinja
