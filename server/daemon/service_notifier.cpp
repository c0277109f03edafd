#include "server/daemon/service_notifier.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace lockstep {
namespace {

constexpr int kPatienceMilliseconds = 1000;
constexpr size_t kDescriptorsMost = 253;  // of one message: the kernel's SCM_MAX_FD

int64_t number_or_zero(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : 0;
}

// One line: the status is shown by `systemctl status`, and a newline would begin a variable.
std::string one_line(std::string_view text) {
  std::string line(text);
  std::ranges::replace_if(
      line, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return line;
}

int64_t microseconds(std::chrono::seconds time) {
  return std::chrono::microseconds(time).count();
}

}  // namespace

std::string_view value_of(const EnvironmentVariables& environment, std::string_view name) {
  const auto found = std::ranges::find(environment, name, &EnvironmentVariables::value_type::first);
  return found == environment.end() ? std::string_view() : std::string_view(found->second);
}

ServiceNotifier::ServiceNotifier(const EnvironmentVariables& environment)
    : address_(value_of(environment, "NOTIFY_SOCKET")) {
  const bool usable = address_.size() > 1 && address_.size() < sizeof(sockaddr_un::sun_path) &&
                      (address_.front() == '/' || address_.front() == '@');
  if (!usable) return;
  if (address_.front() == '@') address_.front() = '\0';
  socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const std::string_view process = value_of(environment, "WATCHDOG_PID");
  if (process.empty() || number_or_zero(process) == getpid()) {
    watchdog_ = std::chrono::microseconds(
        std::max<int64_t>(0, number_or_zero(value_of(environment, "WATCHDOG_USEC"))));
  }
}

ServiceNotifier::~ServiceNotifier() {
  if (socket_ >= 0) close(socket_);
}

bool ServiceNotifier::send(std::string_view lines, std::span<const int> descriptors) const {
  if (!is_there()) return false;
  if (send_now(lines, descriptors)) return true;
  if (errno != EAGAIN) return false;
  pollfd entry{.fd = socket_, .events = POLLOUT, .revents = 0};
  const auto end = Clock::now() + std::chrono::milliseconds(kPatienceMilliseconds);
  // An unconnected socket is always writable: what is full is the receiver's queue.
  while (Clock::now() < end) {
    poll(&entry, 0, 10);
    if (send_now(lines, descriptors)) return true;
    if (errno != EAGAIN) return false;
  }
  return false;
}

bool ServiceNotifier::send_now(std::string_view lines, std::span<const int> descriptors) const {
  if (descriptors.size() > kDescriptorsMost) {
    errno = EINVAL;
    return false;
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, address_.data(), address_.size());
  iovec content{.iov_base = const_cast<char*>(lines.data()), .iov_len = lines.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsMost * sizeof(int))> control{};
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent = -1;
  do {
    sent = sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

void ServiceNotifier::loading(std::string_view status, std::chrono::seconds more_time) const {
  send(fmt::format("STATUS={}\nEXTEND_TIMEOUT_USEC={}", one_line(status), microseconds(more_time)));
}

void ServiceNotifier::ready(std::string_view status) const {
  send(fmt::format("READY=1\nSTATUS={}", one_line(status)));
}

void ServiceNotifier::status(std::string_view status) const {
  send(fmt::format("STATUS={}", one_line(status)));
}

void ServiceNotifier::reloading() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  send(fmt::format("RELOADING=1\nMONOTONIC_USEC={}\nSTATUS=Reading the configuration again",
                   int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000));
}

void ServiceNotifier::stopping(std::string_view status, std::chrono::seconds more_time) const {
  send(fmt::format("STOPPING=1\nSTATUS={}\nEXTEND_TIMEOUT_USEC={}", one_line(status),
                   microseconds(more_time)));
}

void ServiceNotifier::feed_watchdog(Clock::time_point now) {
  if (!is_there() || watchdog_.count() == 0) return;
  if (now.time_since_epoch() < next_feed_.load(std::memory_order_relaxed)) return;
  // At half of what it waits; a little earlier, since looks come in steps.
  if (send_now("WATCHDOG=1", {})) {
    next_feed_.store(now.time_since_epoch() + watchdog_ / 2 - watchdog_ / 8,
                     std::memory_order_relaxed);
  }
}

}  // namespace lockstep
