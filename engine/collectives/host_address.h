// Addresses of hosts: "name:port", "10.0.0.2:7070", "[fe80::1]:7070", ":7070", and their sockets.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/descriptor.h"
#include "engine/base/result.h"

struct sockaddr;

namespace lockstep {

struct HostAddress {
  std::string host;  // without brackets; empty: every interface
  uint16_t port = 0;

  // Fails with kInvalidInput.
  static Result<HostAddress> parse(const std::string& text);
};

// A socket that listens and does not block. Fails with kMachineRefused.
Result<Descriptor> listening_socket(const HostAddress& address);

// A socket of this family that does not block, and has neither Nagle's delay nor, past
// `patience_ms` without an acknowledgement, a connection.
Result<Descriptor> stream_socket(int family);
void prepare_stream(int socket, int64_t patience_ms);

// "10.0.0.2:7070" or "[fe80::1]:7070". An IPv4 address that IPv6 carries is shown as such.
std::string address_text(const sockaddr& address, bool with_port);
// This side of a connection, without the port; the other side, with it.
std::string local_address_of(int socket);
std::string peer_address_of(int socket);
// The port of a listening socket.
uint16_t port_of(int socket);

// Whether "name:port" is of this machine alone (127.0.0.0/8, ::1, "localhost").
bool is_loopback_host(const std::string& address);

}  // namespace lockstep
