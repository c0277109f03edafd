#include "server/http/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "engine/base/log.h"

namespace lockstep {
namespace {

// Clients that connect between two looks of the gate: as many as the system admits by default. Who
// finds no place here tries again after a second.
constexpr int kBacklog = 4096;
// The bytes that the kernel holds per client beside our own outbox; without it a client that does
// not read costs megabytes.
constexpr int kSendBufferBytes = 64 * 1024;
constexpr int kFirstPassed = 3;  // SD_LISTEN_FDS_START

std::unexpected<Error> cannot_listen(const std::string& path, std::string_view what) {
  return machine_refused("cannot listen on unix:{}: {}; choose another path", path, what);
}

void set_option(int socket, int level, int name, int value) {
  // None of these is needed to serve.
  setsockopt(socket, level, name, &value, sizeof(value));
}

// Accepted sockets inherit these.
void set_connection_options(int socket, bool is_unix) {
  set_option(socket, SOL_SOCKET, SO_SNDBUF, kSendBufferBytes);
  if (is_unix) return;
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 30);  // a client whose machine vanished: 60 s
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// "192.0.2.1", "::1".
std::string text_of(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return text.data();
}

std::string text_of(const addrinfo& address) {
  return text_of(address.ai_addr, address.ai_addrlen);
}

std::optional<int> number_in(const Environment& environment, std::string_view name) {
  const auto variable = std::ranges::find(environment, name, &Environment::value_type::first);
  if (variable == environment.end()) return std::nullopt;
  const std::string& text = variable->second;
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) return std::nullopt;
  return value;
}

bool is_listening_stream(int descriptor) {
  int listening = 0;
  int type = 0;
  socklen_t size = sizeof(int);
  if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0) return false;
  size = sizeof(int);
  if (getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) != 0) return false;
  return listening == 1 && type == SOCK_STREAM;
}

sockaddr_un path_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

}  // namespace

Result<void> remove_stale_socket(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode)) return cannot_listen(path, "there is a file of another kind");
  const Descriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = path_address(path);
  const int connected =
      connect(probe.number(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  if (connected == 0 || errno == EAGAIN) return cannot_listen(path, "another process does");
  if (errno != ECONNREFUSED) return cannot_listen(path, std::strerror(errno));
  if (unlink(path.c_str()) != 0) return cannot_listen(path, std::strerror(errno));
  return {};
}

// Fills port and name from the bound socket. `host`: as it was asked for; "" for the bound one.
void Listener::describe(const std::string& host) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(socket_.number(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return;
  if (address.ss_family == AF_UNIX) {
    const auto& path = reinterpret_cast<const sockaddr_un&>(address);
    is_unix_ = true;
    name_ = "unix:" + std::string(path.sun_path, strnlen(path.sun_path, sizeof(path.sun_path)));
    return;
  }
  const std::string shown =
      host.empty() ? text_of(reinterpret_cast<const sockaddr*>(&address), size) : host;
  port_ =
      ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                          : reinterpret_cast<const sockaddr_in&>(address).sin_port);
  const bool brackets = shown.find(':') != std::string::npos;
  name_ = fmt::format("{}{}{}:{}", brackets ? "[" : "", shown, brackets ? "]" : "", port_);
}

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
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  return bind_first(host, port, addresses.get());
}

Result<Listener> Listener::bind_first(const std::string& host, uint16_t port,
                                      const addrinfo* addresses) {
  std::string reasons;
  for (const addrinfo* address = addresses; address != nullptr; address = address->ai_next) {
    auto listener = bind_address(host, *address);
    if (listener) {
      if (addresses->ai_next != nullptr) {
        spdlog::info("{} stands for several addresses; only {} is listened on{}{}", host,
                     text_of(*address), reasons.empty() ? "" : ", since before it: ", reasons);
      }
      return listener;
    }
    reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", listener.error().message);
  }
  return machine_refused("cannot listen on {} port {}: {}; choose another address or port", host,
                         port, reasons);
}

// The error is what failed and why, alone.
Result<Listener> Listener::bind_address(const std::string& host, const addrinfo& address) {
  const auto failed = [&](const char* what) {
    const char* const reason = std::strerror(errno);
    return machine_refused("{} {}: {}", what, text_of(address), reason);
  };
  Listener listener;
  listener.socket_ = Descriptor(
      socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  const int number = listener.socket_.number();
  if (number < 0) return failed("socket");
  set_option(number, SOL_SOCKET, SO_REUSEADDR, 1);
  set_connection_options(number, false);
  if (::bind(number, address.ai_addr, address.ai_addrlen) != 0) return failed("bind");
  if (::listen(number, kBacklog) != 0) return failed("listen");
  listener.describe(host);
  return listener;
}

Result<Listener> Listener::bind_path(const std::string& path, uint32_t mode) {
  const sockaddr_un address = path_address(path);
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return invalid_input("the path of a Unix socket has 1 to {} bytes, not {}: choose another",
                         sizeof(address.sun_path) - 1, path.size());
  }
  if (auto removed = remove_stale_socket(path); !removed) {
    return std::unexpected(std::move(removed.error()));
  }
  Listener listener;
  listener.socket_ = Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int number = listener.socket_.number();
  if (number < 0) return cannot_listen(path, std::strerror(errno));
  set_connection_options(number, true);
  // Before it has a name, so that at no time more may connect than shall.
  fchmod(number, static_cast<mode_t>(mode));
  if (::bind(number, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return cannot_listen(path, std::strerror(errno));
  }
  struct stat status {};
  if (chmod(path.c_str(), static_cast<mode_t>(mode)) != 0 || lstat(path.c_str(), &status) != 0) {
    return cannot_listen(path, std::strerror(errno));
  }
  listener.path_ = path;
  listener.path_inode_ = status.st_ino;
  if (::listen(number, kBacklog) != 0) return cannot_listen(path, std::strerror(errno));
  listener.describe("");
  return listener;
}

std::vector<Listener> Listener::passed(const Environment& environment) {
  std::vector<Listener> listeners;
  const auto process = number_in(environment, "LISTEN_PID");
  const auto count = number_in(environment, "LISTEN_FDS");
  if (!process || *process != getpid() || !count) return listeners;
  for (int number = kFirstPassed; number - kFirstPassed < *count; ++number) {
    if (!is_listening_stream(number)) continue;
    fcntl(number, F_SETFD, FD_CLOEXEC);
    fcntl(number, F_SETFL, fcntl(number, F_GETFL) | O_NONBLOCK);
    Listener listener;
    listener.socket_ = Descriptor(number);
    listener.is_passed_ = true;
    listener.describe("");
    set_connection_options(number, listener.is_unix_);
    listeners.push_back(std::move(listener));
  }
  return listeners;
}

void Listener::shut() {
  if (!is_passed_) shutdown(socket_.number(), SHUT_RDWR);
}

void Listener::close() {
  if (!socket_.is_open()) return;
  socket_.close();
  if (path_.empty()) return;
  struct stat status {};
  if (lstat(path_.c_str(), &status) == 0 && status.st_ino == path_inode_) unlink(path_.c_str());
  path_.clear();
}

}  // namespace lockstep
