#include "server/http/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace lockstep {
namespace {

constexpr int kBacklog = 1024;  // clients that connect between two looks of the gate
// What the kernel holds per client beside our own outbox; without it a client that does not read
// costs megabytes.
constexpr int kSendBufferBytes = 64 * 1024;

std::unexpected<Error> cannot_listen(const std::string& host, uint16_t port, const char* what) {
  return machine_refused(
      "cannot listen on {} port {}: {}: {}; choose another with --host and --port", host, port,
      what, std::strerror(errno));
}

uint16_t bound_port(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

void set_option(int socket, int level, int name, int value) {
  // None of these is needed to serve.
  setsockopt(socket, level, name, &value, sizeof(value));
}

}  // namespace

Result<Listener> Listener::bind(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) {
    return invalid_input("the host '{}' is no address to listen on: {}", host,
                         gai_strerror(failure));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> address(found, freeaddrinfo);

  Listener listener;
  listener.socket_ = Descriptor(
      socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  const int number = listener.socket_.number();
  if (number < 0) return cannot_listen(host, port, "socket");
  set_option(number, SOL_SOCKET, SO_REUSEADDR, 1);
  // Accepted sockets inherit the rest.
  set_option(number, SOL_SOCKET, SO_SNDBUF, kSendBufferBytes);
  set_option(number, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(number, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(number, IPPROTO_TCP, TCP_KEEPIDLE, 30);  // a client whose machine vanished: 60 s
  set_option(number, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(number, IPPROTO_TCP, TCP_KEEPCNT, 3);
  if (::bind(number, address->ai_addr, address->ai_addrlen) != 0) {
    return cannot_listen(host, port, "bind");
  }
  if (listen(number, kBacklog) != 0) return cannot_listen(host, port, "listen");
  listener.port_ = bound_port(number);
  return listener;
}

void Listener::shut() {
  shutdown(socket_.number(), SHUT_RDWR);
}

}  // namespace lockstep
