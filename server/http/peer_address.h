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
  // The longest prefix that the Internet routes, 24 bits of an IPv4 address and 48 of an IPv6 one:
  // a guess at the owner of the network. One owner may have all networks of such a prefix, and gets
  // others only by a further allocation. An address that is routed nowhere (private, local, shared)
  // has its network for a site: there the server's operator gives the addresses. "" for a Unix
  // socket.
  std::string site;

  static PeerAddress of(const sockaddr_storage& address);
};

}  // namespace lockstep
