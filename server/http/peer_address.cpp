#include "server/http/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>

namespace lockstep {
namespace {

constexpr size_t kIpv6NetworkBytes = 8;
constexpr size_t kMappedIpv4Offset = 12;  // ::ffff:192.0.2.1

std::string address_text(int family, const void* bytes) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  return inet_ntop(family, bytes, text.data(), text.size()) == nullptr ? "unknown" : text.data();
}

}  // namespace

PeerAddress PeerAddress::of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const std::string text =
        address_text(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr);
    return {text, text};
  }
  if (address.ss_family != AF_INET6) return {"unix", ""};
  const in6_addr& bytes = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&bytes) != 0) {
    const std::string text = address_text(AF_INET, bytes.s6_addr + kMappedIpv4Offset);
    return {text, text};
  }
  return {address_text(AF_INET6, &bytes),
          std::string(reinterpret_cast<const char*>(bytes.s6_addr), kIpv6NetworkBytes)};
}

std::string network_of(const std::string& text) {
  in6_addr bytes{};
  if (inet_pton(AF_INET6, text.c_str(), &bytes) == 1) {
    return std::string(reinterpret_cast<const char*>(bytes.s6_addr), kIpv6NetworkBytes);
  }
  in_addr ipv4{};
  return inet_pton(AF_INET, text.c_str(), &ipv4) == 1 ? text : std::string();
}

}  // namespace lockstep
