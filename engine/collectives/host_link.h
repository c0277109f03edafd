// How ranks of two hosts exchange during a pass: what one sends the other receives, in the same
// order on both; both know how much it is.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string_view>

#include "engine/base/result.h"

namespace lockstep {

// One thread at a time, but for shut_down(). exchange() neither allocates nor locks.
class HostLink {
 public:
  virtual ~HostLink() = default;

  // Sends all of `out` and receives all of `in`, both at once. Either may be empty. Bounded waits:
  // fails with kMachineRefused, naming the other host, when it has moved no byte for the stream's
  // patience, or has gone; from then on every call fails.
  virtual Result<void> exchange(std::span<const std::byte> out, std::span<std::byte> in) = 0;

  // Whether so many bytes can be sent while the other host receives nothing: they lie in buffers.
  virtual bool buffers(size_t bytes) const = 0;

  // A link of bytes, in which exchanges have no borders, can also move any pieces of them, as many
  // bytes as go without waiting: the number. What follows has to begin with the rest. Both fail as
  // exchange(), but for silence: who calls them again and again keeps to the patience himself.
  virtual bool takes_pieces() const { return false; }
  virtual Result<size_t> send_some(std::span<const std::byte> out);
  virtual Result<size_t> receive_some(std::span<std::byte> in);
  virtual std::chrono::milliseconds patience() const = 0;

  // Any thread, any time: calls in progress and all later ones fail.
  virtual void shut_down() noexcept = 0;

  virtual std::string_view transport() const = 0;  // the row's name
};

}  // namespace lockstep
