#include "server/daemon/event_socket.h"

namespace lockstep {

Result<std::unique_ptr<EventSocket>> bind_event_socket(const std::string& endpoint) {
  return machine_refused(
      "KV events cannot be published at {} (--kv-events): this program was built without ZeroMQ. "
      "Build it where zmq.h is found (Debian's libzmq3-dev)",
      endpoint);
}

}  // namespace lockstep
