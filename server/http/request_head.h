// The head of a request (request line and fields, RFC 9112), read strictly: whatever two parties
// on the way could read differently is refused.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http_limits.h"
#include "server/http/http_request.h"

namespace lockstep {

// The target of a request line, split into path and query and percent-decoded.
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

struct RequestHead {
  std::string method;  // one of the registered methods
  RequestTarget target;
  int minor_version = 1;                           // HTTP/1.x
  std::multimap<std::string, std::string> fields;  // names in lower case, values trimmed

  bool keep_alive = true;   // what the client requests
  bool is_chunked = false;  // else the body has content_length bytes
  uint64_t content_length = 0;
  bool expects_continue = false;  // "Expect: 100-continue"

  bool has_body() const { return is_chunked || content_length > 0; }
  // The first of this name, or "".
  std::string_view field(std::string_view name) const { return first_field(fields, name); }
};

// Finds the end of a head in bytes that come piece by piece, and refuses early what can never
// become one, so that a client need not be waited for: a bare CR or LF, NUL, a first line that is
// no request line, too many bytes. Each byte is looked at once.
class HeadScanner {
 public:
  explicit HeadScanner(const HttpLimits& limits) : limits_(limits) {}

  // `input` begins with the same bytes each time and may grow. The size of the head including the
  // empty line, or nullopt if it is not whole yet.
  std::expected<std::optional<size_t>, HttpRefusal> scan(std::string_view input);
  void reset();

 private:
  std::optional<HttpRefusal> check_request_line(std::string_view line) const;

  const HttpLimits& limits_;
  size_t scanned_ = 0;     // bytes looked at
  size_t line_begin_ = 0;  // of the line that scanned_ is in
  bool has_request_line_ = false;
};

// The path of a head that is not whole or not sound, for the wording of its refusal alone; "" where
// there is none yet.
std::string_view path_at_sight(std::string_view input);

// Parses a whole head as HeadScanner found it.
std::expected<RequestHead, HttpRefusal> parse_request_head(std::string_view bytes,
                                                           const HttpLimits& limits);

}  // namespace lockstep
