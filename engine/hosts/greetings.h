// The connections that come to a host, each with its first frame, which says what it is for.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/base/result.h"
#include "engine/collectives/host_stream.h"
#include "engine/hosts/control_stream.h"
#include "engine/hosts/frames.h"

namespace lockstep {

struct Greeted {
  std::unique_ptr<ControlStream> stream;
  std::variant<Hello, LinkHello> hello;
};

// Tells the other side why its connection is not wanted, and the log.
void refuse(ControlStream& stream, std::string_view reason);

// Accepts connections and reads their first frames, of many at once: none holds up the others, and
// one that says no hello within `patience` is dropped.
class Greetings {
 public:
  // The listener must outlive this.
  Greetings(HostListener& listener, std::chrono::milliseconds patience)
      : listener_(listener), patience_(patience) {}

  // The next connection that has said hello in this version of the protocol, with a small bound of
  // its payloads; none: not within so much time. Fails as HostListener::accept().
  Result<std::optional<Greeted>> next(std::chrono::milliseconds most);

 private:
  struct Newcomer {
    std::unique_ptr<ControlStream> stream;
    ControlStream::Clock::time_point came_at;
  };

  HostListener& listener_;
  std::chrono::milliseconds patience_;
  std::vector<Newcomer> newcomers_;  // the oldest first
};

}  // namespace lockstep
