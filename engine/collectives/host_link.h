// How ranks of two hosts exchange during a pass: what one sends the other receives, in the same
// order on both; both know how much it is.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "engine/base/result.h"
#include "engine/collectives/host_stream.h"

namespace lockstep {

// One thread at a time for all links of a host, but for shut_down(). exchange() neither allocates
// nor locks.
class HostLink {
 public:
  virtual ~HostLink() = default;

  // Sends all of `out` and receives all of `in`, both at once. Either may be empty. Bounded waits:
  // fails with kMachineRefused, naming the other host, when it has moved no byte for the stream's
  // patience, or has gone; from then on every call fails.
  virtual Result<void> exchange(std::span<const std::byte> out, std::span<std::byte> in) = 0;

  // Whether so many bytes can be sent while the other host receives nothing: they lie in buffers.
  virtual bool buffers(size_t bytes) const = 0;

  // Bytes that travel piece by piece while something else is done, in both directions. What goes
  // this way has gone before exchange() is called, and is received this way as well. It fails as
  // exchange(), but for silence. It lives as long as the link.
  virtual BytePieces& pieces() = 0;

  // Any thread, any time: calls in progress and all later ones fail.
  virtual void shut_down() noexcept = 0;

  virtual std::string_view transport() const = 0;  // the row's name
};

}  // namespace lockstep
