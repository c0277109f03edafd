// A whole request, as its handler reads it.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "server/http/http_fields.h"

namespace lockstep {

struct HttpRequest {
  std::string method;                               // upper case
  std::string path;                                 // without the query, percent-decoded
  std::string query;                                // raw, may be empty
  std::multimap<std::string, std::string> headers;  // names in lower case
  std::string body;
  std::string remote_address;
  std::string principal;  // the name of the key it came with; "" where none is asked for
  // Shares with others what the engine and its preparation have. The owner of the key, or where
  // none is asked for the client's site (PeerAddress), which may have any number of networks.
  std::string tenant;
  std::string request_id;  // X-Request-Id as sent (if at most 128 printable characters), or made up
  std::map<std::string, std::string> path_parameters;  // ":id" of the route's pattern
  size_t nesting_max = 64;                             // limits.nesting
  std::chrono::steady_clock::time_point arrived = {};  // when it was whole

  // The first header of this (lower case) name, or "".
  std::string_view header(std::string_view name) const { return first_field(headers, name); }
};

}  // namespace lockstep
