// A client made of a bare socket, so that tests can send any bytes at any pace.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/descriptor.h"

namespace lockstep {

struct RawResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool is_whole = false;  // the body ended where its head or its last chunk says
};

class RawClient {
 public:
  // Fails the test if nobody listens. `receive_buffer_bytes` 0: the system's own. `source`: the
  // address it comes from, one of 127.0.0.0/8.
  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0, const char* source = "127.0.0.1");
  // To a Unix socket.
  explicit RawClient(const std::string& path);

  // False if the connection does not take them any more.
  bool send(std::string_view bytes);
  // The next response; nullopt if the connection ends before one. `method` HEAD: no body follows.
  std::optional<RawResponse> receive(std::string_view method = "GET");
  // Reads until `wanted` bytes have come; false if the connection ends first.
  bool receive_bytes(size_t wanted);
  // True once the server has closed and nothing is left to read.
  bool is_ended();

  void shut_sending();
  void close() { socket_.close(); }
  void reset();  // closes with RST

 private:
  bool receive_more();  // false at the end of the connection
  bool receive_until(std::string_view mark);
  bool receive_chunks(std::string& body);

  Descriptor socket_;
  std::string buffer_;
};

// A connected socket that waits for bytes, but not forever.
Descriptor connect_to(uint16_t port);

// Whether a connection is accepted at all.
bool can_connect(uint16_t port);

}  // namespace lockstep
