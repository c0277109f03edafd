// Checks what --kv-events was given. libzmq takes far more, and binds elsewhere what it misreads:
// of a port it reads the digits at the front, modulo 65536.
#include <arpa/inet.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "server/daemon/event_socket.h"

namespace lockstep {
namespace {

bool is_port(std::string_view text) {
  if (text == "*") return true;
  unsigned port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port <= 65'535;
}

bool is_address(std::string text) {
  if (text == "*") return true;
  int family = AF_INET;
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') {
    family = AF_INET6;
    text = text.substr(1, text.size() - 2);
  }
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return ::inet_pton(family, text.c_str(), address.data()) == 1;
}

bool is_tcp(std::string_view rest) {
  const size_t colon = rest.rfind(':');
  return colon != std::string_view::npos && is_port(rest.substr(colon + 1)) &&
         is_address(std::string(rest.substr(0, colon)));
}

}  // namespace

std::string_view socket_path_of(std::string_view endpoint) {
  return endpoint.starts_with(kIpcScheme) ? endpoint.substr(kIpcScheme.size()) : "";
}

Result<void> check_event_endpoint(const std::string& endpoint) {
  const std::string_view path = socket_path_of(endpoint);
  const bool is_path =
      path.starts_with('/') && path.size() < sizeof(sockaddr_un::sun_path) && !path.contains('\0');
  if (is_path || (endpoint.starts_with(kTcpScheme) &&
                  is_tcp(std::string_view(endpoint).substr(kTcpScheme.size())))) {
    return {};
  }
  return invalid_input(
      "--kv-events: must be tcp://ADDRESS:PORT, of an IPv4 address, an IPv6 address in [] or *, "
      "and "
      "a port up to 65535 or *, or ipc:///PATH of at most {} bytes, not \"{:.200}\"",
      sizeof(sockaddr_un::sun_path) - 1, endpoint);
}

}  // namespace lockstep
