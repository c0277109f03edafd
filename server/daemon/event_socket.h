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
  // subscribers that are too far behind do not get it. False: it could not be sent, for want of
  // memory.
  virtual bool send(std::string_view topic, std::string_view sequence,
                    std::string_view payload) = 0;
  // Lets go of subscribers that have left: to be called now and then where nothing is sent.
  virtual void tend() {}
  // The address at which it is bound: with the port, where the machine has chosen it.
  virtual std::string endpoint() const = 0;
};

inline constexpr std::string_view kTcpScheme = "tcp://";
inline constexpr std::string_view kIpcScheme = "ipc://";

// kInvalidInput unless it is "tcp://ADDRESS:PORT" ("*" for all IPv4 addresses, and for a port that
// is free) or "ipc://" and an absolute path.
Result<void> check_event_endpoint(const std::string& endpoint);
// The path behind "ipc://"; empty for others.
std::string_view socket_path_of(std::string_view endpoint);

// Binds one at an endpoint that is checked. A socket at its path that is another process's, and a
// file of another kind, are refused. To be used by one thread at a time.
Result<std::unique_ptr<EventSocket>> bind_event_socket(const std::string& endpoint);

}  // namespace lockstep
