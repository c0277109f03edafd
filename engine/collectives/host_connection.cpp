#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "engine/collectives/host_address.h"
#include "engine/collectives/host_channel.h"
#include "engine/collectives/host_stream.h"
#include "engine/collectives/host_tls.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// A host that does not answer for so long is tried again by those that wait for it.
constexpr std::chrono::milliseconds kConnectWithin = std::chrono::seconds(2);

class ChannelStream : public HostStream {
 public:
  ChannelStream(std::unique_ptr<HostChannel> channel, std::string peer,
                const HostStreamOptions& options)
      : channel_(std::move(channel)),
        peer_(std::move(peer)),
        patience_(options.patience),
        spins_(options.spins) {}

  Result<void> exchange(std::span<const std::byte> out, std::span<std::byte> in) override {
    return move(out, in, std::nullopt);
  }

  Result<void> send_within(std::span<const std::byte> out,
                           std::chrono::milliseconds most) override {
    return move(out, {}, most);
  }

  Result<size_t> send_some(std::span<const std::byte> out) override {
    if (auto usable = check(); !usable) return std::unexpected(usable.error());
    size_t sent = 0;
    while (sent < out.size()) {
      const ChannelStep step = channel_->send(out.subspan(sent));
      if (step.is_over()) return fail(channel_->reason());
      if (step.bytes == 0) break;
      sent += step.bytes;
    }
    return sent;
  }

  Result<bool> wait_readable(std::chrono::milliseconds most) override {
    if (auto usable = check(); !usable) return std::unexpected(usable.error());
    const auto deadline = Clock::now() + most;
    while (true) {
      const ChannelStep step = channel_->look();
      if (step.bytes > 0) return true;
      if (step.is_over()) return fail(channel_->reason());
      const auto left = deadline - Clock::now();
      if (left <= Clock::duration::zero()) return false;
      wait_for_events(channel_->socket(), step.events, left);
    }
  }

  // Also after sending has failed: the other side may have said why before it went.
  Result<size_t> receive_some(std::span<std::byte> in) override {
    if (is_shut_down_.load(std::memory_order_relaxed)) return fail({});
    size_t received = 0;
    while (received < in.size()) {
      const ChannelStep step = channel_->receive(in.subspan(received));
      // Bytes from before the end are handed out first; the next call finds the end again.
      if (step.is_over() && received == 0) return fail(channel_->reason());
      if (step.bytes == 0) break;
      received += step.bytes;
    }
    return received;
  }

  int descriptor() const override { return channel_->socket(); }

  void shut_down() noexcept override {
    is_shut_down_.store(true, std::memory_order_relaxed);
    // Wakes a call that waits, which finds the stream ended and then looks at the flag. The kernel
    // orders the two.
    ::shutdown(channel_->socket(), SHUT_RDWR);
  }

  const std::string& peer() const override { return peer_; }
  std::string local_address() const override { return local_address_of(channel_->socket()); }
  bool is_encrypted() const override { return channel_->is_encrypted(); }
  std::chrono::milliseconds patience() const override { return patience_; }
  bool spins() const override { return spins_; }

 private:
  // Both ways at once. `most`: in all; none: as long as bytes move.
  Result<void> move(std::span<const std::byte> out, std::span<std::byte> in,
                    std::optional<std::chrono::milliseconds> most) {
    if (auto usable = check(); !usable) return usable;
    const Clock::time_point began = most ? Clock::now() : Clock::time_point();
    Clock::time_point quiet_since = {};  // the epoch: bytes have moved in the last turn
    while (!out.empty() || !in.empty()) {
      if (most && Clock::now() - began >= *most) return fail_slow(*most, out.size() + in.size());
      ChannelStep sent;
      ChannelStep received;
      if (!out.empty()) {
        sent = channel_->send(out);
        if (sent.is_over()) return fail(channel_->reason());
        out = out.subspan(sent.bytes);
      }
      if (!in.empty()) {
        received = channel_->receive(in);
        if (received.is_over()) return fail(channel_->reason());
        in = in.subspan(received.bytes);
      }
      if (sent.bytes + received.bytes > 0) {
        quiet_since = {};
        continue;
      }
      const auto now = Clock::now();
      if (quiet_since == Clock::time_point()) quiet_since = now;
      if (now - quiet_since >= patience_) return fail_silent();
      if (spins_ && now - quiet_since < kSpinTime) {
        spin_once(now - quiet_since);
        continue;
      }
      const auto events = static_cast<short>(sent.events | received.events);
      Clock::duration left = patience_ - (now - quiet_since);
      if (most) left = std::min<Clock::duration>(left, *most - (now - began));
      wait_for_events(channel_->socket(), events, left);
    }
    return {};
  }

  // Bytes that had come before it was shut down are still there, and are not to be had any more.
  Result<void> check() {
    if (!failure_ && is_shut_down_.load(std::memory_order_relaxed)) return fail({});
    if (failure_) return std::unexpected(*failure_);
    return {};
  }

  std::unexpected<Error> fail(const std::string& reason) {
    const bool shut_down = is_shut_down_.load(std::memory_order_relaxed);
    failure_ = machine_refused("the connection to host {} is lost: {}", peer_,
                               shut_down ? "it was shut down here" : reason)
                   .error();
    return std::unexpected(*failure_);
  }

  std::unexpected<Error> fail_slow(std::chrono::milliseconds most, size_t bytes) {
    return fail(fmt::format("{} bytes are left after {} ms", bytes, most.count()));
  }

  std::unexpected<Error> fail_silent() {
    return fail(fmt::format("no byte has moved for {} ms", patience_.count()));
  }

  const std::unique_ptr<HostChannel> channel_;
  const std::string peer_;
  const std::chrono::milliseconds patience_;
  const bool spins_;
  std::atomic<bool> is_shut_down_ = false;
  std::optional<Error> failure_;
};

Result<void> wait_connected(int socket, const std::string& address,
                            std::chrono::milliseconds patience) {
  int error = 0;
  socklen_t size = sizeof error;
  if (!wait_for_events(socket, POLLOUT, patience)) {
    error = ETIMEDOUT;
  } else if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
    error = errno;
  }
  if (error != 0) return unavailable("cannot connect to host {}: {}", address, strerror(error));
  return {};
}

// The first of the name's addresses that somebody listens at.
Result<Descriptor> connected_socket(const std::string& address,
                                    std::chrono::milliseconds patience) {
  const auto parsed = HostAddress::parse(address);
  if (!parsed) return std::unexpected(parsed.error());
  if (parsed->host.empty() || parsed->port == 0) {
    return invalid_input("'{}' is no address to connect to: it needs a name and a port", address);
  }
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(parsed->port);
  const int refusal = getaddrinfo(parsed->host.c_str(), port.c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, freeaddrinfo);
  // The names of hosts that are being started may be known later.
  if (refusal != 0) {
    return unavailable("cannot find the address of host {}: {}", address, gai_strerror(refusal));
  }
  std::optional<Error> first;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    auto socket = stream_socket(each->ai_family);
    if (!socket) return socket;
    prepare_stream(socket->number(), patience.count());
    Result<void> connected;
    if (connect(socket->number(), each->ai_addr, each->ai_addrlen) == 0 || errno == EINPROGRESS) {
      connected = wait_connected(socket->number(), address, patience);
    } else {
      connected = unavailable("cannot connect to host {}: {}", address, strerror(errno));
    }
    if (connected) return socket;
    if (!first) first = connected.error();
  }
  return std::unexpected(*first);
}

Result<void> shake_hands(HostChannel& channel, const std::string& address,
                         std::chrono::milliseconds patience) {
  while (true) {
    const uint64_t received = channel.received_bytes();
    const ChannelStep step = channel.shake_hands();
    if (step.bytes > 0) return {};
    if (step.is_over() && channel.is_refused()) {
      return machine_refused(
          "host {} and this one do not have the same secret, or it has none: give every host of "
          "the group the same (TLS: {})",
          address, channel.reason());
    }
    if (step.is_over()) {
      return unavailable(
          "host {} has ended the connection before it showed that it knows the secret ({}): it is "
          "no host of the group, has no secret, or is ending",
          address, channel.reason());
    }
    if (channel.received_bytes() == received &&
        !wait_for_events(channel.socket(), step.events, patience)) {
      return unavailable(
          "host {} has not shown within {} ms that it knows the secret: it is no host of the "
          "group, has no secret, or is too busy",
          address, patience.count());
    }
  }
}

}  // namespace

std::unique_ptr<HostStream> stream_over(std::unique_ptr<HostChannel> channel, std::string peer,
                                        const HostStreamOptions& options) {
  return std::make_unique<ChannelStream>(std::move(channel), std::move(peer), options);
}

Result<std::unique_ptr<HostStream>> connect_host(const std::string& address,
                                                 const HostStreamOptions& options) {
  const auto patience = std::min(options.patience, kConnectWithin);
  auto socket = connected_socket(address, patience);
  if (!socket) return std::unexpected(socket.error());
  if (!options.secret) return stream_over(plain_channel(std::move(*socket)), address, options);
  const auto tls = HostTls::create(*options.secret);
  if (!tls) return std::unexpected(tls.error());
  auto channel = (*tls)->connecting(std::move(*socket));
  if (!channel) return std::unexpected(channel.error());
  const auto shaken = shake_hands(**channel, address, patience);
  if (!shaken) return std::unexpected(shaken.error());
  return stream_over(std::move(*channel), address, options);
}

}  // namespace lockstep
