#include "server/http/allowed_hosts.h"

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
