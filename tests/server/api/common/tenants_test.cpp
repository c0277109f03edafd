// One site with many networks floods the engine's queue: each request counts for the tenant that
// the gate names (HttpRequest::tenant), which is the site.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <map>
#include <random>
#include <string>

#include "engine/scheduler/queue_shares.h"
#include "server/http/networks.h"
#include "tests/tried_cases.h"

namespace lockstep {
namespace {

using GroupId = QueueShares::GroupId;

PeerAddress address_of(const std::string& text) {
  sockaddr_storage storage{};
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(storage);
  auto& ipv6 = reinterpret_cast<sockaddr_in6&>(storage);
  if (inet_pton(AF_INET, text.c_str(), &ipv4.sin_addr) == 1) {
    storage.ss_family = AF_INET;
  } else {
    EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &ipv6.sin6_addr), 1) << text;
    storage.ss_family = AF_INET6;
  }
  return PeerAddress::of(storage);
}

struct Flood {
  const char* name;
  std::string (*address)(size_t number);  // below 256
};

const Flood kFloods[] = {
    {"addresses of 24 bits", [](size_t number) { return "203.0.113." + std::to_string(number); }},
    {"networks of 48 bits",
     [](size_t number) { return "2001:db8:5:" + std::to_string(number) + "::1"; }}};

// How many of 20 other sites' first requests find a place while the flood has asked for all.
template <typename Name>
size_t others_taken(const Flood& flood, const Name& name, uint32_t seed) {
  constexpr size_t kOthers = 20;
  std::mt19937 random(seed);
  const QueueShares::Limits limits{.places = 160, .prompt_tokens = 100'000};
  QueueShares shares;
  GroupId next = 1;
  const auto ask = [&](const std::string& address, size_t tokens) {
    return shares
        .take(next++, {.tenant = name(address_of(address)), .prompt_tokens = tokens}, limits)
        .has_value();
  };
  size_t taken = 0;
  for (size_t other = 0; other < kOthers; ++other) {
    for (size_t count = 0; count < 400; ++count) {
      ask(flood.address(random() % 256), 1 + random() % 2000);
    }
    const std::string address = other % 2 == 0 ? "198.51." + std::to_string(other) + ".7"
                                               : "2001:db8:" + std::to_string(100 + other) + "::7";
    taken += ask(address, 1 + random() % 1000) ? 1 : 0;
  }
  return taken;
}

TEST(Tenants, beside_a_site_of_many_networks_every_other_ones_first_request_is_taken) {
  for (const Flood& flood : kFloods) {
    for (uint32_t seed = 1; seed <= tried_cases(5); ++seed) {
      SCOPED_TRACE(std::string(flood.name) + ", seed " + std::to_string(seed));
      const auto site = [](const PeerAddress& address) { return address.site; };
      EXPECT_EQ(others_taken(flood, site, seed), 20U);
      // Were each network a tenant, the flood would have all places but a few.
      const auto network = [](const PeerAddress& address) { return address.network; };
      EXPECT_LT(others_taken(flood, network, seed), 20U);
    }
  }
}

}  // namespace
}  // namespace lockstep
