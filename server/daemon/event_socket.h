// A socket that events are published at: ZeroMQ's PUB, by libzmq, which is loaded when it is first
// asked for. In a build without its header (no_zmq.cpp) there is none, and the reason is told.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace lockstep {

class EventSocket {
 public:
  virtual ~EventSocket() = default;

  // One message of three frames, for all that have subscribed to the start of `topic`. Never waits:
  // subscribers that are too far behind do not get it. False: it went to none.
  virtual bool send(std::string_view topic, std::string_view sequence,
                    std::string_view payload) = 0;
  // The address at which it is bound: with the port, where the machine has chosen it.
  virtual std::string endpoint() const = 0;
};

// Binds one at "tcp://ADDRESS:PORT" ("*" for any of either) or "ipc://PATH"; kInvalidInput for
// anything else. To be used by one thread at a time.
Result<std::unique_ptr<EventSocket>> bind_event_socket(const std::string& endpoint);

}  // namespace lockstep
