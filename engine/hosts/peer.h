// Another host of a formed group: the connection to it, and the commands that have come from it.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/base/result.h"
#include "engine/hosts/control_stream.h"

namespace lockstep {

// Commands that have come and were not asked for, in their order. Keeps small buffers, so that
// commands of a usual length take no memory; kept_bytes() has a bound.
class CommandRing {
 public:
  static constexpr size_t kCommandsMost = 8;
  static constexpr size_t kBytesMost = size_t{1} << 20U;  // beside one more command of any length
  static constexpr size_t kSmallBytes = kBytesMost / kCommandsMost;

  bool is_empty() const { return count_ == 0; }
  // Nothing is to be read until a command has been taken.
  bool is_full() const { return count_ == kCommandsMost || bytes_ >= kBytesMost; }
  // Both exchange buffers, so that none is copied. push() only while it is not full.
  void push(std::vector<std::byte>& command) {
    bytes_ += command.size();
    command.swap(commands_[(first_ + count_++) % kCommandsMost]);
  }
  void pop(std::vector<std::byte>& command) {
    std::vector<std::byte>& place = commands_[first_];
    bytes_ -= place.size();
    command.swap(place);
    if (place.capacity() > kSmallBytes) std::vector<std::byte>().swap(place);
    first_ = (first_ + 1) % kCommandsMost;
    --count_;
  }
  // The memory of all buffers: at most twice kBytesMost and one command.
  size_t kept_bytes() const {
    size_t bytes = 0;
    for (const auto& command : commands_) bytes += command.capacity();
    return bytes;
  }

 private:
  std::array<std::vector<std::byte>, kCommandsMost> commands_;
  size_t first_ = 0;
  size_t count_ = 0;
  size_t bytes_ = 0;  // of the commands
};

// To which there is a control connection.
struct Peer {
  size_t host = 0;
  std::unique_ptr<ControlStream> stream;
  ThreadTurn reading;  // frames from it, and handling them
  // The control thread's.
  bool read_again = false;
  int silent_looks = 0;

  // A look, by the control thread: whether nothing has been heard of it for so long.
  bool is_silent(std::chrono::milliseconds patience);
};

// A call that is made once, after a failure: when it has come, or is set, whichever is later.
class FailureCall {
 public:
  using Call = std::function<void(const Error&)>;

  // Replaces one that was not made.
  void set(Call call);
  void tell(const Error& reason);

 private:
  Mutex mutex_;
  Call call_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Error> reason_ LOCKSTEP_GUARDED_BY(mutex_);  // once it has failed
};

// Sends a host's last words, if they go until then; once in any case.
void say_last(ControlStream& stream, std::span<const std::byte> words,
              ControlStream::Clock::time_point until);

}  // namespace lockstep
