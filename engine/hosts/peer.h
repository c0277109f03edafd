// Another host of a formed group: the connection to it, and the commands that have come from it.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/hosts/control_stream.h"

namespace lockstep {

// Commands that have come, in their order; their buffers stay.
class CommandRing {
 public:
  static constexpr size_t kCommandsMost = 8;  // that were not asked for

  bool is_empty() const { return count_ == 0; }
  bool is_full() const { return count_ == kCommandsMost; }
  // Exchanges buffers, so that none is copied.
  void push(ControlStream& stream) {
    stream.swap_payload(commands_[(first_ + count_++) % kCommandsMost]);
  }
  void pop(std::vector<std::byte>& command) {
    command.swap(commands_[first_]);
    first_ = (first_ + 1) % kCommandsMost;
    --count_;
  }

 private:
  std::array<std::vector<std::byte>, kCommandsMost> commands_;
  size_t first_ = 0;
  size_t count_ = 0;
};

// To which there is a control connection.
struct Peer {
  size_t host = 0;
  std::unique_ptr<ControlStream> stream;
  Turn reading;  // frames from it, and handling them
  // The control thread's.
  bool read_again = false;
  int silent_looks = 0;
};

// Sends a host's last words, if they go until then; once in any case.
void say_last(ControlStream& stream, std::span<const std::byte> words,
              ControlStream::Clock::time_point until);

}  // namespace lockstep
