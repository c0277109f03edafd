#include "server/http/cors.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr const char* kExposed =
    "X-Request-Id, Retry-After, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    "x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "
    "x-ratelimit-reset-tokens";
constexpr const char* kPreflightSeconds = "600";

}  // namespace

bool Cors::allows(std::string_view origin) const {
  return !origin.empty() && std::any_of(origins_.begin(), origins_.end(), [&](const auto& known) {
    return known == "*" || known == origin;
  });
}

Cors::Headers Cors::answer_headers(const RequestHead& head) const {
  Headers headers;
  if (origins_.empty()) return headers;
  // Also to those that are not allowed: a cache must not give their answer to others.
  headers.emplace("Vary", "Origin");
  const std::string_view origin = head.field("origin");
  if (!allows(origin)) return headers;
  headers.emplace("Access-Control-Allow-Origin", origin);
  headers.emplace("Access-Control-Expose-Headers", kExposed);
  return headers;
}

bool Cors::is_preflight(const RequestHead& head) const {
  return head.method == "OPTIONS" && head.fields.contains("access-control-request-method") &&
         allows(head.field("origin"));
}

Cors::Headers Cors::preflight_headers(const RequestHead& head) {
  Headers headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST"},
                     {"Access-Control-Max-Age", kPreflightSeconds}};
  const std::string_view asked = head.field("access-control-request-headers");
  if (!asked.empty()) headers.emplace("Access-Control-Allow-Headers", asked);
  return headers;
}

}  // namespace lockstep
