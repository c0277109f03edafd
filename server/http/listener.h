// The listening socket.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/result.h"
#include "server/http/descriptor.h"

namespace lockstep {

class Listener {
 public:
  // Binds to the first address that `host` (a name or an address) stands for, and listens.
  // kMachineRefused names host, port and reason; a host that stands for nothing is kInvalidInput.
  static Result<Listener> bind(const std::string& host, uint16_t port);

  uint16_t port() const { return port_; }
  int descriptor() const { return socket_.number(); }
  bool is_open() const { return socket_.is_open(); }

  // Any thread: refuses further clients at once; the descriptor stays until close().
  void shut();
  // The thread that polls the descriptor.
  void close() { socket_.close(); }

 private:
  Descriptor socket_;
  uint16_t port_ = 0;
};

}  // namespace lockstep
