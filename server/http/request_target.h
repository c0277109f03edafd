// The target of a request line, split into path and query and percent-decoded.
#pragma once

#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http_refusal.h"

namespace lockstep {

struct RequestTarget {
  std::string raw_path;  // as sent: an encoded '/' (%2F) is no separator
  std::string path;      // percent-decoded
  std::string query;     // as sent, without the '?'
};

// Refuses (400) what is not "/path" or "/path?query" of printable ASCII, a broken percent sequence,
// and one that stands for a control character, in path and query alike.
std::expected<RequestTarget, HttpRefusal> parse_request_target(std::string_view text);

// nullopt for a broken percent sequence or one that stands for a control character.
std::optional<std::string> percent_decode(std::string_view text);

}  // namespace lockstep
