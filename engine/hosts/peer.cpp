#include "engine/hosts/peer.h"

#include <thread>

namespace lockstep {

void say_last(ControlStream& stream, std::span<const std::byte> words,
              ControlStream::Clock::time_point until) {
  constexpr std::chrono::milliseconds kBetweenTries{1};
  bool is_sent = false;
  while (true) {
    const auto done = is_sent ? stream.flush() : stream.try_send(words);
    if (!done || (is_sent && *done)) return;
    if (*done) {
      is_sent = true;
      continue;
    }
    if (ControlStream::Clock::now() > until) return;
    std::this_thread::sleep_for(kBetweenTries);
  }
}

}  // namespace lockstep
