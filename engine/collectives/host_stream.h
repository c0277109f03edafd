// A connection to another host of the group: bytes in both directions over TCP, in TLS 1.3 with a
// pre-shared key (RFC 8446, section 4.2.11) where the group has a secret: who does not know it
// cannot connect, read, or change a byte.
//
// Every wait is bounded: a call fails when the other host has moved no byte for `patience`. The
// message names the other host. After a failure every call fails alike.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/base/result.h"
#include "engine/base/secret.h"

namespace lockstep {

struct HostStreamOptions {
  std::optional<SecretKey> secret;  // none: neither encrypted nor authenticated
  std::chrono::milliseconds patience = std::chrono::seconds(5);
  bool spins = true;  // looks for a moment before it sleeps: no other worker needs the processor
};

// Bytes that go to another host and come from it, as many at once as go without waiting. One thread
// at a time. Fails with kMachineRefused where the other host has closed the connection.
class BytePieces {
 public:
  virtual ~BytePieces() = default;

  // Sends what goes without waiting: the number of bytes. What follows has to begin with the rest.
  virtual Result<size_t> send_some(std::span<const std::byte> out) = 0;

  // Receives what is there, at most so much, and does not wait: the number of bytes, 0 where none
  // is.
  virtual Result<size_t> receive_some(std::span<std::byte> in) = 0;

  // Behind all that is exchanged in a pass, either way: whether this host may turn to something
  // else for any time, since the other one needs no more help for what has come and gone. False:
  // not yet, so it calls again, for all others in turns until each has been told once. Where the
  // kernel moves the bytes it is so at once.
  virtual Result<bool> settle() { return true; }

  // For how long the other host may move no byte. Who calls these again and again keeps to it.
  virtual std::chrono::milliseconds patience() const = 0;
};

// One thread at a time, but for shut_down(). No call after connecting allocates (TLS aside).
class HostStream : public BytePieces {
 public:
  // Sends all of `out` and receives all of `in`, both at once: the other host may do either first.
  // Fails with kMachineRefused.
  virtual Result<void> exchange(std::span<const std::byte> out, std::span<std::byte> in) = 0;
  Result<void> send(std::span<const std::byte> out) { return exchange(out, {}); }
  Result<void> receive(std::span<std::byte> in) { return exchange({}, in); }
  // As send(), which also fails where all of it takes longer than this: of a host that takes a byte
  // now and then.
  virtual Result<void> send_within(std::span<const std::byte> out,
                                   std::chrono::milliseconds most) = 0;

  // Whether there is something to receive within so much time. Fails where the other host has
  // closed the connection.
  virtual Result<bool> wait_readable(std::chrono::milliseconds most) = 0;

  // The socket, to poll for what is to be received: after receive_some() has given less than it was
  // asked for. Any thread may poll, also beside a call of another.
  virtual int descriptor() const = 0;

  // Any thread, any time: calls in progress and all later ones fail, and the descriptor polls as
  // readable.
  virtual void shut_down() noexcept = 0;

  virtual const std::string& peer() const = 0;  // "10.0.0.2:7070", for messages
  // This host's address as the other one reaches it, without the port.
  virtual std::string local_address() const = 0;
  virtual bool is_encrypted() const = 0;
  // As its options say, like patience(); what goes over another way beside it keeps to both.
  virtual bool spins() const = 0;
};

class HostListener {
 public:
  virtual ~HostListener() = default;
  // `address`: "name:port", "[v6]:port" or ":port" for every interface; port 0: any. Fails with
  // kInvalidInput for one that is none, kMachineRefused where it cannot be listened at.
  static Result<std::unique_ptr<HostListener>> open(const std::string& address,
                                                    const HostStreamOptions& options);

  virtual uint16_t port() const = 0;
  // The next connection whose other side knows the secret; null: none within so much time.
  // Strangers are closed, each after a second of silence or five seconds in all and several at a
  // time, without keeping members out, and told to the log at a bounded rate.
  virtual Result<std::unique_ptr<HostStream>> accept(std::chrono::milliseconds most) = 0;
};

// Fails with kInvalidInput for a malformed address, with kUnavailable where no host listens yet
// (a later try may succeed), with kMachineRefused where the other side does not know the secret.
Result<std::unique_ptr<HostStream>> connect_host(const std::string& address,
                                                 const HostStreamOptions& options);

}  // namespace lockstep
