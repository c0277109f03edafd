#include "server/http/browser_rules.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>

#include "engine/base/ascii.h"
#include "server/http/http_request.h"

namespace lockstep {
namespace {

constexpr const char* kExposed =
    "X-Request-Id, Retry-After, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    "x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "
    "x-ratelimit-reset-tokens";
constexpr const char* kPreflightSeconds = "600";

constexpr std::string_view kLocalhost = "localhost";
constexpr size_t kShownBytesMax = 200;

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address == "::1";
}

bool is_port(std::string_view text) {
  return std::all_of(text.begin(), text.end(), is_ascii_digit);
}

// The name without its port and the dot of the root, in lower case; an IPv6 address keeps its
// brackets. "" for what is no Host.
std::string name_in(std::string_view host) {
  const size_t bracket = host.starts_with('[') ? host.find(']') : 0;
  const size_t colon = host.find(':', std::min(bracket, host.size()));
  if (colon != std::string_view::npos) {
    if (!is_port(host.substr(colon + 1))) return "";
    host = host.substr(0, colon);
  }
  if (host.ends_with('.')) host.remove_suffix(1);
  return ascii_lower(host);
}

bool is_address(const std::string& name) {
  in6_addr bytes{};
  if (!name.starts_with('[')) return inet_pton(AF_INET, name.c_str(), &bytes) == 1;
  return name.ends_with(']') &&
         inet_pton(AF_INET6, name.substr(1, name.size() - 2).c_str(), &bytes) == 1;
}

std::string name_of_machine() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

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

AllowedHosts::AllowedHosts(const std::vector<std::string>& names)
    : allows_any_(std::ranges::find(names, "*") != names.end()),
      names_{std::string(kLocalhost), name_in(name_of_machine())} {
  for (const std::string& name : names) names_.insert(name_in(name));
  names_.erase("");
}

bool AllowedHosts::allows(std::string_view host) const {
  if (allows_any_ || host.empty()) return true;
  const std::string name = name_in(host);
  return names_.contains(name) || name.ends_with(".localhost") || is_address(name);
}

std::expected<std::string, HttpRefusal> AllowedHosts::authorize(const HttpHead& head) const {
  const std::string_view host = head.header("host");
  if (!is_loopback(head.remote_address) || is_health_route(head.route) || allows(host)) {
    return std::string();
  }
  return std::unexpected(HttpRefusal{
      403, "The Host '" + std::string(host.substr(0, kShownBytesMax)) +
               "' is none of this server's names: if it shall be one, name it in --allowed-hosts"});
}

}  // namespace lockstep
