// Text from outside, made fit for a message.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace lockstep {

// `text` in double quotes: bytes that are not printable ASCII as \xNN, long text cut with "...".
std::string in_quotes(std::string_view text);

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
