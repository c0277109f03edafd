// A request as its handler reads it, as access control sees it, and one that is refused before it
// reaches a handler.
#pragma once

#include <chrono>
#include <cstddef>
#include <expected>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace lockstep {

// The first field of this name, or "".
inline std::string_view first_field(const std::multimap<std::string, std::string>& fields,
                                    std::string_view name) {
  const auto found = fields.lower_bound(std::string(name));
  return found != fields.end() && found->first == name ? std::string_view(found->second) : "";
}

struct HttpRequest {
  std::string method;                               // upper case
  std::string path;                                 // without the query, percent-decoded
  std::string query;                                // raw, may be empty
  std::multimap<std::string, std::string> headers;  // names in lower case
  std::string body;
  std::string remote_address;
  std::string principal;  // the name of the key it came with; "" where none is asked for
  // The one that shares with others what the engine and its preparation have: the owner of the key,
  // or where none is asked for the client's site (PeerAddress), which may have any number of
  // networks.
  std::string tenant;
  std::string request_id;  // X-Request-Id as sent (at most 128 printable characters), or generated
  std::map<std::string, std::string> path_parameters;  // ":id" of the route's pattern
  size_t nesting_max = 64;                             // limits.nesting
  std::chrono::steady_clock::time_point arrived = {};  // when it was whole

  // The first header of this (lower case) name, or "".
  std::string_view header(std::string_view name) const { return first_field(headers, name); }
};

// A request that is refused before it reaches a handler: the status, and what was wrong.
struct HttpRefusal {
  int status = 400;
  std::string message;
  std::multimap<std::string, std::string> headers = {};  // Retry-After, Allow and the like
  std::string body = {};  // a JSON text; none: HttpOptions::error_body words the message
};

// A request as access control sees it: when its head is whole, before its body is read.
struct HttpHead {
  std::string_view method;
  std::string_view route;                                  // the pattern, or "" if no route matched
  const std::multimap<std::string, std::string>& headers;  // names in lower case
  std::string_view remote_address;
  bool without_key = false;  // the route's; false if no route matched

  // The first header of this (lower case) name, or "".
  std::string_view header(std::string_view name) const { return first_field(headers, name); }
};

// The sender's name (HttpRequest::principal), or a refusal. Called by the gate's thread for every
// request, known path or not; must not block.
using HttpAuthorize = std::function<std::expected<std::string, HttpRefusal>(const HttpHead&)>;

// "/health" and what lies below it.
inline bool is_health_route(std::string_view route) {
  constexpr std::string_view kHealth = "/health";
  return route == kHealth || (route.starts_with(kHealth) && route[kHealth.size()] == '/');
}

}  // namespace lockstep
