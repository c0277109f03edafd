// Pieces of bytes over a library that sends messages (UCX, MPI): what goes is copied into messages
// that travel by themselves, and what comes is kept until it is taken. So neither host has to know
// how the other one cuts its bytes, and no memory of a caller is read or written after a call.
//
// A message that the library is done with may still lie in this process, and needs it to come by.
// At the end of a pass each host tells each other one, by a word over their connection, that all it
// was to receive is here and all it sent is gone. The kernel carries the word. A host that has
// heard it from all others may leave the pass.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/collectives/host_stream.h"

namespace lockstep {

// The library's part. None of these waits; messages come in the order in which they were sent.
class MessagePort {
 public:
  virtual ~MessagePort() = default;

  // Begins to send; `bytes` must stay until has_sent(slot) says so. No other message is in progress
  // in this slot.
  virtual Result<void> begin_send(size_t slot, std::span<const std::byte> bytes) = 0;
  virtual Result<bool> has_sent(size_t slot) = 0;

  // The next message if all of it is there: its bytes. `into` is the same memory in every call, may
  // be written to between them, and is as long as the longest message: a longer one is a failure.
  virtual Result<std::optional<size_t>> receive(std::span<std::byte> into) = 0;

  // Moves on what is on its way, over all links of this host.
  virtual Result<void> progress() = 0;
};

// One thread at a time.
class MessagePieces final : public BytePieces {
 public:
  static constexpr size_t kSlots = 2;
  static constexpr size_t kMessageBytes = size_t{256} << 10U;

  // `port` must outlive all calls; it reads and writes this object's memory for as long as messages
  // are in progress. `words`: the connection, over which nothing else goes.
  MessagePieces(MessagePort& port, BytePieces& words);

  // Bytes count as gone when their message has: the rest begins with what is on its way.
  Result<size_t> send_some(std::span<const std::byte> out) override;
  Result<size_t> receive_some(std::span<std::byte> in) override;
  Result<bool> settle() override;
  std::chrono::milliseconds patience() const override { return words_.patience(); }

 private:
  struct Slot {
    std::vector<std::byte> memory;
    size_t bytes = 0;
  };

  MessagePort& port_;
  BytePieces& words_;
  std::array<Slot, kSlots> slots_;
  size_t first_ = 0;         // the slot of the oldest message on its way
  size_t on_their_way_ = 0;  // messages
  size_t bytes_on_their_way_ = 0;
  std::vector<std::byte> incoming_;
  size_t came_ = 0;         // bytes of the message at hand
  size_t taken_ = 0;        // of these
  bool has_said_ = false;   // the pass's word
  bool has_heard_ = false;  // the other host's
};

}  // namespace lockstep
