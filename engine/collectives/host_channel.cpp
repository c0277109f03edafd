#include "engine/collectives/host_channel.h"

#include <immintrin.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep {
namespace {

class PlainChannel : public HostChannel {
 public:
  using HostChannel::HostChannel;

  ChannelStep shake_hands() override { return {.bytes = 1}; }

  ChannelStep send(std::span<const std::byte> bytes) override {
    return step(::send(socket(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL), POLLOUT);
  }

  ChannelStep receive(std::span<std::byte> bytes) override {
    return step(recv(socket(), bytes.data(), bytes.size(), MSG_DONTWAIT), POLLIN);
  }

  ChannelStep look() override {
    char one = 0;
    return step(recv(socket(), &one, 1, MSG_DONTWAIT | MSG_PEEK), POLLIN);
  }

  std::string reason() const override {
    return error_ == 0 ? "it has closed the connection" : std::strerror(error_);
  }
  bool is_refused() const override { return false; }
  bool is_encrypted() const override { return false; }

 private:
  ChannelStep step(ssize_t count, short events) {
    if (count > 0) return {.bytes = static_cast<size_t>(count)};
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return {.events = events};
    error_ = count == 0 ? 0 : errno;
    return {};
  }

  int error_ = 0;
};

}  // namespace

std::unique_ptr<HostChannel> plain_channel(Descriptor socket) {
  return std::make_unique<PlainChannel>(std::move(socket));
}

void spin_once(std::chrono::nanoseconds waited) {
  // An exchange of 16 KiB takes less. After it, what is waited for may need this processor.
  constexpr auto kAloneTime = std::chrono::microseconds(30);
  if (waited < kAloneTime) {
    _mm_pause();
  } else {
    sched_yield();
  }
}

bool wait_for_events(int socket, short events, std::chrono::nanoseconds most) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::ceil<Clock::duration>(most);
  while (true) {
    pollfd watched = {.fd = socket, .events = events, .revents = 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    constexpr int64_t kMost = 1'000'000;
    const int count =
        poll(&watched, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, kMost)));
    if (count > 0) return true;
    if (Clock::now() >= deadline) return false;
  }
}

}  // namespace lockstep
