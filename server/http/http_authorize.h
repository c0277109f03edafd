// The question that access control answers for each request.
#pragma once

#include <expected>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "server/http/http_fields.h"
#include "server/http/http_refusal.h"

namespace lockstep {

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

}  // namespace lockstep
