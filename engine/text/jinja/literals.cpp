#include "engine/text/jinja/literals.h"

#include <algorithm>
#include <charconv>

#include "engine/text/jinja/characters.h"
#include "engine/text/utf8.h"

namespace lockstep::jinja {

namespace {

bool is_digit_of(char character, int base) {
  if (character >= '0' && character <= '9') return character - '0' < base;
  const char lower = static_cast<char>(character | 0x20);
  return base == 16 && lower >= 'a' && lower <= 'f';
}

// Digits that single underscores may separate; 0 when there is none at the beginning.
size_t digits_length(std::string_view text, int base) {
  size_t length = 0;
  while (length < text.size()) {
    if (is_digit_of(text[length], base)) {
      ++length;
    } else if (length > 0 && text[length] == '_' && length + 1 < text.size() &&
               is_digit_of(text[length + 1], base)) {
      length += 2;
    } else {
      break;
    }
  }
  return length;
}

std::string without_underscores(std::string_view digits) {
  std::string plain(digits);
  std::erase(plain, '_');
  return plain;
}

// \x41, \u0041 and \U00000041: so many hexadecimal digits after the letter.
uint32_t read_code_point(std::string_view& rest, size_t digits) {
  if (rest.size() < digits ||
      !std::ranges::all_of(rest.substr(0, digits), [](char c) { return is_digit_of(c, 16); })) {
    fail("a string ends in a truncated \\x, \\u or \\U escape");
  }
  uint32_t code_point = 0;
  std::from_chars(rest.data(), rest.data() + digits, code_point, 16);
  rest.remove_prefix(digits);
  if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point <= 0xDFFF)) {
    fail("a string escapes U+{:04X}, which is no character", code_point);
  }
  return code_point;
}

uint32_t read_octal(std::string_view& rest) {
  uint32_t code_point = 0;
  for (int digit = 0; digit < 3 && !rest.empty() && is_digit_of(rest[0], 8); ++digit) {
    code_point = code_point * 8 + static_cast<uint32_t>(rest[0] - '0');
    rest.remove_prefix(1);
  }
  return code_point;
}

// After a backslash.
void append_escape(std::string_view& rest, std::string& text) {
  constexpr std::string_view kLetters = "\\'\"abfnrtv";
  constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
  if (rest.empty()) fail("a string ends in a lone backslash");
  const char letter = rest[0];
  if (is_digit_of(letter, 8)) return append_utf8(read_octal(rest), text);
  if (static_cast<unsigned char>(letter) >= 0x80) {
    // Python first writes such a character as an escape: what remains of it is its number.
    const Character character = first_character(rest);
    const uint32_t code_point = character.code_point;
    text += code_point <= 0xFF     ? fmt::format("\\x{:02x}", code_point)
            : code_point <= 0xFFFF ? fmt::format("\\u{:04x}", code_point)
                                   : fmt::format("\\U{:08x}", code_point);
    rest.remove_prefix(character.bytes);
    return;
  }
  rest.remove_prefix(1);
  if (letter == '\n') return;  // a line that goes on
  if (letter == 'x') return append_utf8(read_code_point(rest, 2), text);
  if (letter == 'u') return append_utf8(read_code_point(rest, 4), text);
  if (letter == 'U') return append_utf8(read_code_point(rest, 8), text);
  if (letter == 'N') fail("a string names a character by \\N, which is not supported");
  const size_t meaning = kLetters.find(letter);
  if (meaning != std::string_view::npos) {
    text += kMeanings[meaning];
  } else {
    text += '\\';
    text += letter;
  }
}

}  // namespace

std::string unescape(std::string_view quoted) {
  std::string text;
  text.reserve(quoted.size());
  while (!quoted.empty()) {
    const size_t backslash = std::min(quoted.find('\\'), quoted.size());
    text += quoted.substr(0, backslash);
    quoted.remove_prefix(backslash);
    if (quoted.empty()) break;
    quoted.remove_prefix(1);
    append_escape(quoted, text);
  }
  return text;
}

size_t float_length(std::string_view text) {
  const size_t whole = digits_length(text, 10);
  if (whole == 0) return 0;
  size_t length = whole;
  if (text.substr(length).starts_with('.')) {
    const size_t fraction = digits_length(text.substr(length + 1), 10);
    if (fraction > 0) length += 1 + fraction;
  }
  const bool has_fraction = length > whole;
  std::string_view rest = text.substr(length);
  if (!rest.empty() && (rest[0] == 'e' || rest[0] == 'E')) {
    size_t exponent = 1;
    if (rest.size() > 1 && (rest[1] == '+' || rest[1] == '-')) ++exponent;
    const size_t digits = digits_length(rest.substr(exponent), 10);
    if (digits > 0) return length + exponent + digits;
  }
  return has_fraction ? length : 0;
}

size_t integer_length(std::string_view text) {
  if (text.size() >= 2 && text[0] == '0') {
    const char letter = static_cast<char>(text[1] | 0x20);
    const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (base != 0) {
      const size_t underscore = text.substr(2).starts_with('_') ? 1 : 0;
      const size_t digits = digits_length(text.substr(2 + underscore), base);
      if (digits > 0) return 2 + underscore + digits;
    }
  }
  size_t length = digits_length(text, 10);
  if (length > 1 && text[0] == '0') {
    // A leading zero is a number of its own.
    length = 1;
    while (length < text.size() &&
           (text[length] == '0' || (text.substr(length).starts_with("_0")))) {
      length += text[length] == '0' ? 1 : 2;
    }
  }
  return length;
}

double read_float(std::string_view digits) {
  const std::string plain = without_underscores(digits);
  double number = 0;
  const auto result = std::from_chars(plain.data(), plain.data() + plain.size(), number);
  if (result.ec == std::errc::result_out_of_range) return std::strtod(plain.c_str(), nullptr);
  return number;
}

int64_t read_integer(std::string_view digits) {
  std::string plain = without_underscores(digits);
  int base = 10;
  if (plain.size() > 2 && plain[0] == '0') {
    const char letter = static_cast<char>(plain[1] | 0x20);
    base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    if (base != 10) plain.erase(0, 2);
  }
  int64_t number = 0;
  const auto result = std::from_chars(plain.data(), plain.data() + plain.size(), number, base);
  if (result.ec != std::errc()) fail("the integer {} does not fit 64 bits", digits);
  return number;
}

}  // namespace lockstep::jinja
