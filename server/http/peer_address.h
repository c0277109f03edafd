// Where a client comes from.
#pragma once

#include <sys/socket.h>

#include <string>

namespace lockstep {

struct PeerAddress {
  std::string text;  // "192.0.2.1", "2001:db8::1", "unix"
  // What one client can have many connections from: an IPv4 address, or an IPv6 network of 64 bits,
  // since a host gets at least one of these. "" for a Unix socket: it has no address.
  std::string network;

  static PeerAddress of(const sockaddr_storage& address);
};

// The network of an address as PeerAddress::text has it; "" for one that has none.
std::string network_of(const std::string& text);

}  // namespace lockstep
