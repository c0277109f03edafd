#include "engine/collectives/host_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <memory>

namespace lockstep {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

void set_option(int socket, int level, int name, int value) {
  // A kernel without the option does without it.
  static_cast<void>(setsockopt(socket, level, name, &value, sizeof value));
}

Result<Descriptor> listen_at(const addrinfo& address) {
  Descriptor socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return machine_refused("{}", std::strerror(errno));
  set_option(socket.number(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.ai_family == AF_INET6) set_option(socket.number(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket.number(), address.ai_addr, address.ai_addrlen) != 0 ||
      listen(socket.number(), SOMAXCONN) != 0) {
    return machine_refused("{}", std::strerror(errno));
  }
  return socket;
}

bool is_loopback_number(const std::string& host) {
  in_addr four = {};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24U == 127;
  in6_addr six = {};
  return inet_pton(AF_INET6, host.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

using NameOf = int (*)(int, sockaddr*, socklen_t*);

sockaddr_storage name_of(int socket, NameOf ask) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (ask(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) address = {};
  return address;
}

std::string text_of(const sockaddr_storage& address, bool with_port) {
  return address_text(reinterpret_cast<const sockaddr&>(address), with_port);
}

}  // namespace

Result<HostAddress> HostAddress::parse(const std::string& text) {
  const auto wrong = [&] {
    return invalid_input(
        "'{}' is no address of a host: write name:port, 10.0.0.2:port, [IPv6]:port or :port", text);
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return wrong();
  HostAddress address{.host = text.substr(0, colon)};
  if (address.host.starts_with('[')) {
    if (address.host.size() < 3 || !address.host.ends_with(']')) return wrong();
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find_first_of(":[] ") != std::string::npos) {
    return wrong();
  }
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, address.port);
  if (error != std::errc() || rest != end) return wrong();
  return address;
}

Result<Descriptor> listening_socket(const HostAddress& address) {
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  const std::string port = std::to_string(address.port);
  addrinfo* found = nullptr;
  const int refusal = getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(),
                                  port.c_str(), &hints, &found);
  const AddressList list(found, freeaddrinfo);
  std::string reason = refusal == 0 ? "no such address" : gai_strerror(refusal);
  // IPv6 first, which takes IPv4 as well where every interface is meant.
  for (const bool six : {true, false}) {
    for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
      if ((each->ai_family == AF_INET6) != (six == address.host.empty())) continue;
      auto socket = listen_at(*each);
      if (socket) return socket;
      reason = socket.error().message;
    }
  }
  return machine_refused("cannot listen for hosts at '{}:{}': {}", address.host, address.port,
                         reason);
}

Result<Descriptor> stream_socket(int family) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return machine_refused("cannot get a socket: {}", std::strerror(errno));
  return socket;
}

void prepare_stream(int socket, int64_t patience_ms) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  // Firewalls on the way forget connections that are silent, as an idle group is.
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
             static_cast<int>(std::clamp<int64_t>(patience_ms, 1, INT_MAX)));
}

std::string address_text(const sockaddr& address, bool with_port) {
  const bool six = address.sa_family == AF_INET6;
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  if (getnameinfo(&address, six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in), host, sizeof host,
                  port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  std::string text = host;
  constexpr std::string_view kCarried = "::ffff:";
  const bool carried = text.starts_with(kCarried) && text.find('.') != std::string::npos;
  if (carried) text.erase(0, kCarried.size());
  if (!with_port) return text;
  return six && !carried ? fmt::format("[{}]:{}", text, port) : fmt::format("{}:{}", text, port);
}

std::string local_address_of(int socket) {
  return text_of(name_of(socket, getsockname), false);
}

std::string peer_address_of(int socket) {
  return text_of(name_of(socket, getpeername), true);
}

uint16_t port_of(int socket) {
  const sockaddr_storage address = name_of(socket, getsockname);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

bool is_loopback_host(const std::string& address) {
  const auto parsed = HostAddress::parse(address);
  return parsed && (parsed->host == "localhost" || is_loopback_number(parsed->host));
}

}  // namespace lockstep
