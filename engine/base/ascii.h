// Letters, digits and blanks of ASCII, whatever the locale: names of HTTP and of configuration are
// made of them. Bytes above ASCII are none of these.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

constexpr bool is_ascii_digit(char c) {
  return c >= '0' && c <= '9';
}

constexpr char ascii_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

inline std::string ascii_lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](char c) { return ascii_lower(c); });
  return lower;
}

// The value of a hexadecimal digit, 0 to 15; none of anything else.
constexpr std::optional<unsigned> hex_digit(char c) {
  if (is_ascii_digit(c)) return static_cast<unsigned>(c - '0');
  const char lower = ascii_lower(c);
  if (lower >= 'a' && lower <= 'f') return static_cast<unsigned>(lower - 'a' + 10);
  return std::nullopt;
}

// Without the blanks at both ends.
constexpr std::string_view trimmed(std::string_view text, std::string_view blanks = " \t") {
  const size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// Text from outside, made fit for a message: in double quotes, bytes that are not printable ASCII
// as \xNN, long text cut with "...".
inline std::string in_quotes(std::string_view text) {
  constexpr size_t kShownBytes = 100;
  std::string result = "\"";
  for (const char character : text.substr(0, kShownBytes)) {
    const auto byte = static_cast<unsigned char>(character);
    if (character == '"' || character == '\\') {
      result += '\\';
      result += character;
    } else if (byte >= 0x20 && byte < 0x7f) {
      result += character;
    } else {
      result += fmt::format("\\x{:02x}", byte);
    }
  }
  result += text.size() > kShownBytes ? "...\"" : "\"";
  return result;
}

}  // namespace lockstep
