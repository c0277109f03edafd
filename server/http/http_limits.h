// The limits of one server: bytes, times, connections and threads.
#pragma once

#include <chrono>
#include <cstddef>

namespace lockstep {

struct HttpLimits {
  size_t head_bytes = 16 * 1024;
  size_t head_fields = 64;
  size_t target_bytes = 2 * 1024;  // path and query
  size_t body_bytes = 4 * 1024 * 1024;
  // The bytes of all requests that are read, wait or run, until HttpResponse::release_body(). The
  // requests of one network have a part of it: see may_hold_body() of networks.h.
  size_t bodies_bytes = 512 * 1024 * 1024;
  std::chrono::milliseconds head_deadline{10'000};
  std::chrono::milliseconds body_deadline{30'000};
  // From body_grace after its head on, a body must have come at this rate at least; 0: any.
  size_t body_bytes_per_second = 64 * 1024;
  std::chrono::milliseconds body_grace{10'000};
  std::chrono::milliseconds write_deadline{10'000};  // a client that takes nothing for so long
  // Once an answer is complete, what the client owes must be taken at this rate at least, from
  // write_deadline after that on; 0: any.
  size_t answer_bytes_per_second = 64 * 1024;
  std::chrono::milliseconds idle_deadline{15'000};  // between two requests of one connection
  size_t unsent_bytes = 256 * 1024;                 // what a streaming client may owe
  // The bytes of all answers together that clients have not taken yet; above it the connection that
  // owes most is cut, of the network that owes most.
  size_t answers_bytes = 512 * 1024 * 1024;
  size_t connections = 4096;
  size_t connections_per_address = 256;  // of an IPv4 address or an IPv6 network of 64 bits
  // Above these limits so many more clients are heard, for probes and scrapes; the oldest that does
  // not get an answer gives its place to the next.
  size_t over_limit_connections = 64;
  // For the handshake and the head of such a client: others want its place.
  std::chrono::milliseconds over_limit_deadline{1'000};
  // Requests served at once; more wait, /health and /metrics excepted. One client's have a part of
  // them: see may_serve() of networks.h.
  size_t threads = 64;
  size_t nesting = 64;  // levels of arrays and objects in a body: for the code that parses it
};

}  // namespace lockstep
