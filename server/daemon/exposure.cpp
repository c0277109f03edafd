#include "server/daemon/exposure.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "server/daemon/event_socket.h"

namespace lockstep {
namespace {

constexpr std::string_view kPlainScheme = "http://";
constexpr std::string_view kSecure = "https://";

// "http://[::1]:8080" to "::1"; empty for a Unix socket.
std::string_view host_of(std::string_view address) {
  const size_t scheme = address.find("://");
  if (scheme == std::string_view::npos) return "";
  const std::string_view rest = address.substr(scheme + 3);
  if (rest.starts_with('[')) return rest.substr(1, rest.find(']') - 1);
  return rest.substr(0, rest.rfind(':'));
}

bool is_exposed(std::string_view address) {
  constexpr std::string_view kLoopbacks[] = {"127.", "::ffff:127."};
  const std::string_view host = host_of(address);
  if (host.empty() || host == "::1" || host == "localhost") return false;
  return std::ranges::none_of(kLoopbacks,
                              [&](std::string_view start) { return host.starts_with(start); });
}

}  // namespace

std::vector<std::string> exposure_warnings(const std::vector<std::string>& addresses,
                                           bool asks_for_keys) {
  std::vector<std::string> warnings;
  for (const std::string& address : addresses) {
    if (!is_exposed(address)) continue;
    if (!asks_for_keys) {
      warnings.push_back(fmt::format(
          "{} takes requests without a key from everyone who can reach it: set --api-keys, or "
          "--host to a loopback address or a Unix socket",
          address));
    }
    if (!address.starts_with(kSecure)) {
      warnings.push_back(fmt::format(
          "{} has no TLS, keys and prompts can be read on their way: set "
          "--tls-certificate and --tls-key, or let a proxy do it and --host be loopback",
          address));
    }
  }
  return warnings;
}

std::vector<std::string> probe_exposure_notes(const std::vector<std::string>& addresses,
                                              bool metrics_ask_for_keys) {
  std::vector<std::string> notes;
  for (const std::string& address : addresses) {
    if (!is_exposed(address)) continue;
    notes.push_back(
        fmt::format("{} (--probe-host) tells health{} without a key{} to everyone who "
                    "can reach it",
                    address, metrics_ask_for_keys ? "" : " and metrics",
                    address.starts_with(kPlainScheme) ? " and without TLS" : ""));
  }
  return notes;
}

std::vector<std::string> event_exposure_warnings(const std::string& endpoint) {
  if (endpoint.starts_with(kIpcScheme) || !is_exposed(endpoint)) return {};
  return {fmt::format(
      "{} (--kv-events) gives all prompts and answers as token ids, without a key and without TLS, "
      "to everyone who can reach it: let a network policy leave it to the router",
      endpoint)};
}

}  // namespace lockstep
