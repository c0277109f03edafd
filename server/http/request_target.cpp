#include "server/http/request_target.h"

#include <algorithm>

#include "engine/base/ascii.h"

namespace lockstep {
namespace {

constexpr char kDelete = 0x7f;

bool is_control(char c) {
  return (c >= 0 && c < ' ') || c == kDelete;
}

bool is_visible_ascii(char c) {
  return c > ' ' && c < kDelete;
}

}  // namespace

std::optional<std::string> percent_decode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t index = 0; index < text.size(); ++index) {
    char c = text[index];
    if (c == '%') {
      if (text.size() - index < 3) return std::nullopt;
      const auto high = hex_digit(text[index + 1]);
      const auto low = hex_digit(text[index + 2]);
      if (!high || !low) return std::nullopt;
      c = static_cast<char>(static_cast<unsigned char>(*high * 16 + *low));
      index += 2;
    }
    if (is_control(c)) return std::nullopt;
    decoded.push_back(c);
  }
  return decoded;
}

std::expected<RequestTarget, HttpRefusal> parse_request_target(std::string_view text) {
  if (text.empty() || text.front() != '/') {
    return std::unexpected(HttpRefusal{400, "the request's target must begin with '/'"});
  }
  if (!std::all_of(text.begin(), text.end(), is_visible_ascii) ||
      text.find('#') != std::string_view::npos) {
    return std::unexpected(
        HttpRefusal{400, "the request's target holds a character that must be percent-encoded"});
  }
  const size_t question_mark = text.find('?');
  const bool has_query = question_mark != std::string_view::npos;
  RequestTarget target;
  target.raw_path = text.substr(0, question_mark);
  if (has_query) target.query = text.substr(question_mark + 1);
  auto path = percent_decode(target.raw_path);
  if (!path || !percent_decode(target.query)) {
    return std::unexpected(
        HttpRefusal{400,
                    "the request's target holds a broken percent sequence or an encoded control "
                    "character"});
  }
  target.path = std::move(*path);
  return target;
}

}  // namespace lockstep
