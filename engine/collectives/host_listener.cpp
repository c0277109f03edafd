#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "engine/base/log.h"
#include "engine/collectives/host_address.h"
#include "engine/collectives/host_channel.h"
#include "engine/collectives/host_stream.h"
#include "engine/collectives/host_tls.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPendingMost = 256;
// A stranger is closed after so much silence, or when it has taken so long in all.
constexpr auto kSilenceMost = std::chrono::seconds(1);
constexpr auto kHandshakeMost = std::chrono::seconds(5);
// A member speaks at once. Where there are too many, who has been silent for so long gives way.
constexpr auto kGivesWayAfter = std::chrono::milliseconds(100);
constexpr auto kLogInterval = std::chrono::seconds(10);

// A connection whose other side has not shown yet that it knows the secret. Until its first byte it
// takes a descriptor and this; a channel of TLS takes some 185 KiB more.
struct Pending {
  Descriptor silent;                     // not open: there is a channel
  std::unique_ptr<HostChannel> channel;  // null: nothing has come yet
  std::string peer;
  Clock::time_point since;
  Clock::time_point heard;
  short events = 0;

  int socket() const { return channel ? channel->socket() : silent.number(); }
};

// Whether there is something to read, an end included.
bool has_spoken(int socket) {
  char one = 0;
  return recv(socket, &one, 1, MSG_DONTWAIT | MSG_PEEK) >= 0 || (errno != EAGAIN && errno != EINTR);
}

// Says how many were closed, at most once per interval.
class StrangersLog {
 public:
  void tell(const std::string& peer, const std::string& reason) {
    ++count_;
    const auto now = Clock::now();
    if (last_ && now - *last_ < kLogInterval) return;
    log_surely([&] {
      spdlog::warn(
          "Closed {} connections of hosts that did not show that they know the group's secret; the "
          "last was {}: {}.",
          count_, peer, reason);
    });
    count_ = 0;
    last_ = now;
  }

 private:
  size_t count_ = 0;
  std::optional<Clock::time_point> last_;
};

class SocketListener : public HostListener {
 public:
  SocketListener(Descriptor socket, std::unique_ptr<HostTls> tls, const HostStreamOptions& options)
      : socket_(std::move(socket)), tls_(std::move(tls)), options_(options) {
    pending_.reserve(kPendingMost);
  }

  uint16_t port() const override { return port_of(socket_.number()); }

  Result<std::unique_ptr<HostStream>> accept(std::chrono::milliseconds most) override {
    const auto deadline = Clock::now() + most;
    while (true) {
      // Reads first and closes silent connections then: since the last call bytes may have waited.
      if (auto member = advance()) return member;
      const bool took = take_waiting();
      if (!accept_failure_.empty()) {
        return machine_refused("cannot accept connections of hosts: {}",
                               std::exchange(accept_failure_, {}));
      }
      close_silent();
      const auto now = Clock::now();
      if (now >= deadline) return nullptr;
      if (took) continue;
      wait(deadline - now);
    }
  }

 private:
  // The next member, if one of the pending has proved to be one.
  std::unique_ptr<HostStream> advance() {
    for (size_t index = 0; index < pending_.size();) {
      Pending& each = pending_[index];
      if (!each.channel) {
        // A host that connects in TLS speaks first.
        if (tls_ != nullptr && !has_spoken(each.silent.number())) {
          ++index;
          continue;
        }
        auto channel = channel_over(std::move(each.silent));
        if (!channel) {
          accept_failure_ = channel.error().message;
          remove(index);
          continue;
        }
        each.channel = std::move(*channel);
      }
      const uint64_t received = each.channel->received_bytes();
      const ChannelStep step = each.channel->shake_hands();
      if (step.bytes > 0) {
        auto member = stream_over(std::move(each.channel), std::move(each.peer), options_);
        remove(index);
        return member;
      }
      if (step.is_over()) {
        log_.tell(each.peer, each.channel->reason());
        remove(index);
        continue;
      }
      if (each.channel->received_bytes() != received) each.heard = Clock::now();
      each.events = step.events;
      ++index;
    }
    return nullptr;
  }

  // Whether there was a connection to take. One is taken even when it is refused at once.
  bool take_waiting() {
    if (pending_.size() == kPendingMost && !drop_silent()) return false;
    sockaddr_storage address = {};
    socklen_t size = sizeof address;
    Descriptor socket(accept4(socket_.number(), reinterpret_cast<sockaddr*>(&address), &size,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) {
      // All else is one newcomer's, or passes: descriptors and memory are given back.
      const bool is_final =
          errno == EBADF || errno == EINVAL || errno == ENOTSOCK || errno == EOPNOTSUPP;
      if (is_final) accept_failure_ = std::strerror(errno);
      return false;
    }
    prepare_stream(socket.number(), options_.patience.count());
    const auto now = Clock::now();
    pending_.push_back({.silent = std::move(socket),
                        .channel = nullptr,
                        .peer = address_text(reinterpret_cast<const sockaddr&>(address), true),
                        .since = now,
                        .heard = now,
                        .events = POLLIN});
    return true;
  }

  Result<std::unique_ptr<HostChannel>> channel_over(Descriptor socket) {
    if (tls_ == nullptr) return plain_channel(std::move(socket));
    return tls_->accepting(std::move(socket));
  }

  bool drop_silent() {
    const auto silent = std::ranges::min_element(pending_, {}, &Pending::heard);
    if (Clock::now() - silent->heard < kGivesWayAfter) return false;
    log_.tell(silent->peer, "it was silent while others waited");
    remove(static_cast<size_t>(silent - pending_.begin()));
    return true;
  }

  void close_silent() {
    const auto now = Clock::now();
    for (size_t index = 0; index < pending_.size();) {
      const Pending& each = pending_[index];
      if (now - each.heard < kSilenceMost && now - each.since < kHandshakeMost) {
        ++index;
        continue;
      }
      log_.tell(each.peer, "it did not show it in time");
      remove(index);
    }
  }

  void wait(Clock::duration most) {
    pollfd watched[1 + kPendingMost];
    size_t count = 0;
    for (const Pending& each : pending_) {
      watched[count++] = {.fd = each.socket(), .events = each.events, .revents = 0};
      most = std::min<Clock::duration>(most, kGivesWayAfter);
    }
    // While there is no place for one more, it waits in the kernel.
    if (pending_.size() < kPendingMost) {
      watched[count++] = {.fd = socket_.number(), .events = POLLIN, .revents = 0};
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(most).count();
    poll(watched, count, static_cast<int>(std::min<int64_t>(left, 1'000'000)));
  }

  void remove(size_t index) {
    std::swap(pending_[index], pending_.back());
    pending_.pop_back();
  }

  const Descriptor socket_;
  const std::unique_ptr<HostTls> tls_;  // null: no secret
  const HostStreamOptions options_;
  std::vector<Pending> pending_;
  std::string accept_failure_;
  StrangersLog log_;
};

}  // namespace

Result<std::unique_ptr<HostListener>> HostListener::open(const std::string& address,
                                                         const HostStreamOptions& options) {
  const auto parsed = HostAddress::parse(address);
  if (!parsed) return std::unexpected(parsed.error());
  auto socket = listening_socket(*parsed);
  if (!socket) return std::unexpected(socket.error());
  std::unique_ptr<HostTls> tls;
  if (options.secret) {
    auto made = HostTls::create(*options.secret);
    if (!made) return std::unexpected(made.error());
    tls = std::move(*made);
  }
  return std::make_unique<SocketListener>(std::move(*socket), std::move(tls), options);
}

}  // namespace lockstep
