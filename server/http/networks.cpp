#include "server/http/networks.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace lockstep {
namespace {

constexpr size_t kIpv6NetworkBytes = 8;
constexpr size_t kIpv6SiteBytes = 6;
constexpr size_t kIpv4SiteBytes = 3;
constexpr size_t kMappedIpv4Offset = 12;  // ::ffff:192.0.2.1

std::string address_text(int family, const void* bytes) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  return inet_ntop(family, bytes, text.data(), text.size()) == nullptr ? "unknown" : text.data();
}

// A prefix of addresses that are routed nowhere (RFC 1918, 1122, 3927, 6598).
struct Range {
  uint32_t address;
  int bits;
};
constexpr Range kPrivate[] = {{0x0A000000, 8},  {0x7F000000, 8},  {0xA9FE0000, 16},
                              {0xAC100000, 12}, {0xC0A80000, 16}, {0x64400000, 10}};

// `bytes`: four, in the network's order.
std::string ipv4_site(const uint8_t* bytes, const std::string& text) {
  uint32_t address = 0;
  for (int index = 0; index < 4; ++index) address = address << 8U | bytes[index];
  const auto holds = [&](const Range& range) {
    return ((address ^ range.address) >> static_cast<unsigned>(32 - range.bits)) == 0;
  };
  if (std::ranges::any_of(kPrivate, holds)) return text;
  return {reinterpret_cast<const char*>(bytes), kIpv4SiteBytes};
}

std::string ipv6_prefix(const in6_addr& address, size_t bytes) {
  return {reinterpret_cast<const char*>(address.s6_addr), bytes};
}

// Unicast that is routed lies in 2000::/3 (RFC 4291).
size_t ipv6_site_bytes(const in6_addr& address) {
  const bool is_routed = (address.s6_addr[0] & 0xE0U) == 0x20;
  return is_routed ? kIpv6SiteBytes : kIpv6NetworkBytes;
}

constexpr size_t kTimesLeft = 2;
// As many connections as one address has by default hold 16 MiB of them.
constexpr size_t kSmallBodyBytes = 64 * 1024;
// Parts that are kept: of threads for clients that hold none, of bytes for networks that hold none
// and, half of it, for small bodies.
constexpr size_t kKeptParts = 8;
constexpr size_t kSmallParts = 2 * kKeptParts;

}  // namespace

PeerAddress PeerAddress::of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& bytes = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    const std::string text = address_text(AF_INET, &bytes);
    return {text, text, ipv4_site(reinterpret_cast<const uint8_t*>(&bytes), text)};
  }
  if (address.ss_family != AF_INET6) return {"unix", "", ""};
  const in6_addr& bytes = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&bytes) != 0) {
    const uint8_t* ipv4 = bytes.s6_addr + kMappedIpv4Offset;
    const std::string text = address_text(AF_INET, ipv4);
    return {text, text, ipv4_site(ipv4, text)};
  }
  return {address_text(AF_INET6, &bytes), ipv6_prefix(bytes, kIpv6NetworkBytes),
          ipv6_prefix(bytes, ipv6_site_bytes(bytes))};
}

Networks::Place::Place(Networks& networks, const std::string& name, bool is_over_limit)
    : table_(&networks.table_),
      entry_(&*networks.table_.try_emplace(name).first),
      is_over_limit_(is_over_limit) {
  ++count();
}

Networks::Place::~Place() {
  if (table_ == nullptr) return;
  --count();
  if (entry_->second.connections + entry_->second.over_limit > 0) return;
  const auto found = table_->find(entry_->first);
  table_->erase(found);
}

Network Networks::find(const std::string& name) const {
  const auto found = table_.find(name);
  return found == table_.end() ? Network() : found->second;
}

bool may_hold_body(size_t body_bytes, size_t network_bytes, size_t all_bytes, size_t bytes_max) {
  if (all_bytes > bytes_max) return false;
  const size_t left = bytes_max - all_bytes;
  if (body_bytes <= kSmallBodyBytes || all_bytes == body_bytes) return true;
  if (network_bytes == body_bytes) return left >= bytes_max / kSmallParts;
  return network_bytes <= kTimesLeft * left && left >= bytes_max / kKeptParts;
}

bool may_serve(size_t served, size_t busy, size_t most) {
  if (busy >= most) return false;
  const size_t left = most - busy - 1;
  return served == 0 || (served + 1 <= kTimesLeft * left && left >= most / kKeptParts);
}

size_t threads_for_one(size_t wanted) {
  return wanted + (wanted + kTimesLeft - 1) / kTimesLeft;
}

}  // namespace lockstep
