// Bytes through a connected socket, as many as go without waiting, and a HostStream over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/base/descriptor.h"
#include "engine/collectives/host_stream.h"

namespace lockstep {

// One of three: some bytes went; poll() has to tell these events first; or it is over, for the
// channel's reason().
struct ChannelStep {
  size_t bytes = 0;
  short events = 0;

  bool is_over() const { return bytes == 0 && events == 0; }
};

class HostChannel {
 public:
  explicit HostChannel(Descriptor socket) : socket_(std::move(socket)) {}
  virtual ~HostChannel() = default;

  // Until both sides know that the other knows the secret: bytes is 1 then.
  virtual ChannelStep shake_hands() = 0;
  virtual ChannelStep send(std::span<const std::byte> bytes) = 0;
  virtual ChannelStep receive(std::span<std::byte> bytes) = 0;
  // As receive() of one byte, which stays.
  virtual ChannelStep look() = 0;

  virtual std::string reason() const = 0;
  // Whether it is over because the other side said so, in TLS, rather than by closing.
  virtual bool is_refused() const = 0;
  virtual bool is_encrypted() const = 0;

  int socket() const { return socket_.number(); }
  uint64_t received_bytes() const { return received_bytes_; }  // through the socket

 protected:
  uint64_t received_bytes_ = 0;

 private:
  Descriptor socket_;
};

// Over a socket that does not block.
std::unique_ptr<HostChannel> plain_channel(Descriptor socket);

// `peer`: the other host, for messages.
std::unique_ptr<HostStream> stream_over(std::unique_ptr<HostChannel> channel, std::string peer,
                                        const HostStreamOptions& options);

// How long a wait looks again and again before it sleeps. A processor that slept takes some 50 us
// to be at work again; a rank waits about so long for another one that has as much to compute.
inline constexpr auto kSpinTime = std::chrono::microseconds(200);

// Between two looks of a wait that has lasted so long.
void spin_once(std::chrono::nanoseconds waited);

// poll(), begun again where a signal ends it. Whether there are events before the time is over.
bool wait_for_events(int socket, short events, std::chrono::nanoseconds most);

}  // namespace lockstep
