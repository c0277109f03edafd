// No network starves the others of what all share: bytes of bodies, places for connections.
#include "server/http/networks.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/server/http/raw_client.h"
#include "tests/server/http/test_server.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMiB = 1024 * 1024;
constexpr const char* kHog = "127.0.0.1";
constexpr const char* kVictim = "127.0.0.2";

// Gives some networks of the loopback address one site.
void make_one_site(HttpOptions& options) {
  options.address_of = [](const sockaddr_storage& address) {
    PeerAddress peer = PeerAddress::of(address);
    if (peer.text.starts_with("127.0.1.")) peer.site = "site";
    return peer;
  };
}

std::string hog_of_site(size_t number) {
  return "127.0.1." + std::to_string(1 + number);
}

// Networks that take what they can, one after another or by turns, leave space for the next one's
// body.
TEST(Networks, hogs_leave_space_for_one_more) {
  constexpr size_t kMax = 512 * kMiB;
  constexpr size_t kBody = 4 * kMiB;
  for (size_t hogs = 1; hogs <= 4; ++hogs) {
    for (const bool by_turns : {false, true}) {
      std::vector<size_t> held(hogs);
      size_t all = 0;
      const auto take = [&](size_t hog) {
        const bool may = may_hold_body(kBody, held[hog] + kBody, all + kBody, kMax);
        held[hog] += may ? kBody : 0;
        all += may ? kBody : 0;
        return may;
      };
      for (size_t round = 0; round < kMax / kBody * hogs; ++round) {
        take(by_turns ? round % hogs : round / (kMax / kBody));
      }
      EXPECT_TRUE(may_hold_body(kBody, kBody, all + kBody, kMax)) << hogs << " hogs hold " << all;
      if (hogs == 1) {
        EXPECT_GE(held[0], kMax / 5 * 3);
      }
    }
  }
}

// However many networks have one body each, the next one's small body finds its bytes.
TEST(Networks, only_bodies_of_many_networks_leave_bytes_for_small_ones) {
  constexpr size_t kMax = 512 * kMiB;
  constexpr size_t kBody = 4 * kMiB;
  constexpr size_t kSmall = 64 * 1024;
  size_t all = 0;
  size_t networks = 0;
  while (may_hold_body(kBody, kBody, all + kBody, kMax)) {
    all += kBody;
    ++networks;
  }
  EXPECT_EQ(networks, 120U);  // 15/16 of all
  size_t small = 0;
  for (; may_hold_body(kSmall, kSmall, all + kSmall, kMax); ++small) all += kSmall;
  EXPECT_EQ(small, 512U);
}

// Networks with several bodies leave bytes for those that have none.
TEST(Networks, further_bodies_of_many_networks_leave_bytes_for_first_ones) {
  constexpr size_t kMax = 512 * kMiB;
  constexpr size_t kBody = 4 * kMiB;
  std::vector<size_t> held(20);
  size_t all = 0;
  for (size_t round = 0; round < 20 * held.size(); ++round) {
    size_t& own = held[round % held.size()];
    if (!may_hold_body(kBody, own + kBody, all + kBody, kMax)) continue;
    own += kBody;
    all += kBody;
  }
  size_t first = 0;
  for (; may_hold_body(kBody, kBody, all + kBody, kMax); ++first) all += kBody;
  EXPECT_GE(first, 8U);
}

TEST(Networks, small_bodies_and_the_only_one_of_all_may_fill_all_and_no_more) {
  EXPECT_TRUE(may_hold_body(1000, 1000, 1000, 1000));
  EXPECT_FALSE(may_hold_body(1000, 1000, 1001, 1000));
  EXPECT_TRUE(may_hold_body(8 * kMiB, 8 * kMiB, 8 * kMiB, 8 * kMiB));
  EXPECT_FALSE(may_hold_body(4 * kMiB, 8 * kMiB, 8 * kMiB, 8 * kMiB));
  EXPECT_TRUE(may_hold_body(1000, 8 * kMiB, 8 * kMiB, 8 * kMiB));
}

TEST(Networks,
     threads_that_hogs_leave_are_never_none_and_one_alone_has_as_many_as_it_was_meant_to) {
  for (const size_t most : {2U, 3U, 4U, 8U, 100U}) {
    size_t busy = 0;
    for (int hog = 0; hog < 3; ++hog) {
      size_t served = 0;
      while (may_serve(served, busy, most) && (served > 0 || most - busy > 1)) {
        ++served;
        ++busy;
      }
    }
    EXPECT_LT(busy, most);
    EXPECT_TRUE(may_serve(0, busy, most));
    EXPECT_FALSE(may_serve(0, most, most));
  }
  for (const size_t wanted : {1U, 2U, 3U, 76U, 1000U}) {
    EXPECT_TRUE(may_serve(wanted - 1, wanted - 1, threads_for_one(wanted)));
  }
}

// Requests that end when the test says so: the hog sends more of them than there are threads.
TEST(Networks, requests_of_one_network_that_do_not_end_leave_threads_for_anothers) {
  HttpLimits limits;
  limits.threads = 8;
  constexpr int kHogsMost = 5;  // 5 <= 2 * (8 - 5), and 6 > 2 * (8 - 6)
  TestServer server(limits);
  std::deque<RawClient> hogs;
  for (size_t count = 0; count < 2 * limits.threads; ++count) {
    hogs.emplace_back(server.port(), 0, kHog).send(request_text("GET", "/block"));
  }
  // Each is served beside all that the hog holds.
  for (const char* source : {kVictim, "127.0.0.8", "127.0.0.9"}) {
    RawClient victim(server.port(), 0, source);
    for (int count = 0; count < 20; ++count) {
      victim.send(request_text("GET", "/hello"));
      const auto answer = victim.receive();
      ASSERT_TRUE(answer.has_value());
      EXPECT_EQ(answer->status, 200);
    }
  }
  EXPECT_LE(server.handled, kHogsMost + 60);
  server.unblock.give();
  for (RawClient& hog : hogs) EXPECT_EQ(hog.receive()->body, "unblocked");
  EXPECT_EQ(server.handled, 2 * static_cast<int>(limits.threads) + 60);
}

TEST(Networks, a_place_is_counted_while_it_is_held) {
  Networks networks;
  {
    const Networks::Place first(networks, "a", false);
    Networks::Place second(networks, "a", true);
    const Networks::Place moved = std::move(second);
    EXPECT_EQ(networks.find("a").connections, 1U);
    EXPECT_EQ(networks.find("a").over_limit, 1U);
    EXPECT_EQ(moved.name(), "a");
  }
  EXPECT_TRUE(networks.table().empty());
}

TEST(Networks, bodies_of_one_network_leave_space_for_anothers_and_for_its_own_small_ones) {
  HttpLimits limits;
  limits.bodies_bytes = 10 * kMiB;
  limits.body_deadline = limits.body_grace = 1h;
  TestServer server(limits);
  const std::string part(kMiB - 1, 'b');
  const std::string head =
      request_text("POST", "/size", "Content-Length: " + std::to_string(kMiB) + "\r\n");
  std::vector<std::unique_ptr<RawClient>> hogs;
  while (server.rejections(HttpRejection::kBusy) == 0 && hogs.size() < 20) {
    hogs.push_back(std::make_unique<RawClient>(server.port(), 0, kHog));
    hogs.back()->send(head);
    hogs.back()->send(part);
    server.get("/hello");
  }
  EXPECT_GT(hogs.size(), 5U);
  RawClient victim(server.port(), 0, kVictim);
  victim.send(head + part + "b");
  EXPECT_EQ(victim.receive()->status, 200);
  RawClient small(server.port(), 0, kHog);
  small.send(request_text("POST", "/size", "", "small"));
  EXPECT_EQ(small.receive()->status, 200);
}

TEST(Networks, bodies_of_one_sites_networks_leave_bytes_for_anothers) {
  HttpLimits limits;
  limits.bodies_bytes = 10 * kMiB;
  limits.body_deadline = limits.body_grace = 1h;
  TestServer server(limits, make_one_site);
  const std::string part(kMiB - 1, 'b');
  const std::string head =
      request_text("POST", "/size", "Content-Length: " + std::to_string(kMiB) + "\r\n");
  std::deque<RawClient> hogs;
  for (size_t count = 0; count < 10; ++count) {  // each network has one
    hogs.emplace_back(server.port(), 0, hog_of_site(count).c_str());
    hogs.back().send(head);
    hogs.back().send(part);
    server.get("/hello");
  }
  EXPECT_GT(server.rejections(HttpRejection::kBusy), 0U);
  for (const char* source : {kVictim, "127.0.0.8"}) {
    RawClient victim(server.port(), 0, source);
    victim.send(head + part + "b");
    const auto answer = victim.receive();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->status, 200);
  }
}

TEST(Networks, requests_of_one_sites_networks_that_do_not_end_leave_threads_for_anothers) {
  HttpLimits limits;
  limits.threads = 9;
  constexpr int kHogsMost = 6;
  TestServer server(limits, make_one_site);
  std::deque<RawClient> hogs;
  for (size_t count = 0; count < 20; ++count) {
    hogs.emplace_back(server.port(), 0, hog_of_site(count).c_str())
        .send(request_text("GET", "/block"));
  }
  for (const char* source : {kVictim, "127.0.0.8", "127.0.0.9"}) {
    RawClient victim(server.port(), 0, source);
    victim.send(request_text("GET", "/hello"));
    const auto answer = victim.receive();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->status, 200);
  }
  EXPECT_LE(server.handled, kHogsMost + 3);
  server.unblock.give();
  for (RawClient& hog : hogs) EXPECT_EQ(hog.receive()->body, "unblocked");
}

TEST(Networks, connections_of_one_sites_networks_give_way_to_anothers) {
  HttpLimits limits;
  limits.connections = 8;
  limits.over_limit_connections = 1;
  limits.head_deadline = limits.idle_deadline = 1h;
  TestServer server(limits, make_one_site);
  std::deque<RawClient> hogs;
  for (size_t count = 0; count < limits.connections; ++count) {  // two networks have two each
    hogs.emplace_back(server.port(), 0, hog_of_site(count % 6).c_str())
        .send(request_text("GET", "/hello"));
    EXPECT_EQ(hogs.back().receive()->status, 200);
  }
  // Other sites' take the oldest place of a network with two, then of the other one, then any.
  std::deque<RawClient> victims;
  for (const char* source : {kVictim, "127.0.0.8", "127.0.0.9"}) {
    RawClient& victim = victims.emplace_back(server.port(), 0, source);
    victim.send(request_text("GET", "/hello"));
    EXPECT_EQ(victim.receive()->status, 200);
    RawClient& gone = hogs[victims.size() - 1];
    EXPECT_EQ(gone.receive()->status, 503);
    EXPECT_TRUE(gone.is_ended());
  }
  // The site still has most: a further network of it takes nobody's place.
  RawClient one_more(server.port(), 0, hog_of_site(6).c_str());
  one_more.send(request_text("GET", "/hello"));
  EXPECT_EQ(one_more.receive()->status, 503);
}

// Each network of the site owes less than the other client, all together more.
TEST(Networks, what_one_sites_networks_owe_is_cut_before_anothers_answer) {
  constexpr int kSmallBuffer = 2048;
  constexpr size_t kHogs = 8;
  HttpLimits limits;
  limits.answers_bytes = 5 * kMiB;
  limits.write_deadline = 1h;
  TestServer server(limits, make_one_site);
  const std::string answer(2 * kMiB, 'v');
  RawClient victim(server.port(), kSmallBuffer, kVictim);
  victim.send(request_text("POST", "/echo", "", answer));
  std::deque<RawClient> hogs;
  for (size_t count = 0; count < kHogs; ++count) {
    hogs.emplace_back(server.port(), kSmallBuffer, hog_of_site(count).c_str())
        .send(request_text("POST", "/echo", "", std::string(kMiB, 'h')));
  }
  // A socket takes some of each; of ten MiB five may be owed.
  while (server.handled < static_cast<int>(kHogs) + 1 || server.cuts(HttpCut::kUnsent) == 0) {
    std::this_thread::yield();
  }
  const auto whole = victim.receive();
  ASSERT_TRUE(whole.has_value());
  EXPECT_TRUE(whole->body == answer);
}

TEST(Networks, all_networks_of_a_site_are_one_tenant_where_there_are_no_keys) {
  TestServer server({}, make_one_site);
  for (const auto& [address, tenant] :
       {std::pair(hog_of_site(0), "site"), std::pair(hog_of_site(1), "site"),
        std::pair(std::string(kVictim), kVictim)}) {
    RawClient client(server.port(), 0, address.c_str());
    client.send(request_text("POST", "/tenant", "", "x"));
    EXPECT_EQ(client.receive()->body, tenant);
  }
}

TEST(Networks, a_route_is_asked_whether_it_is_busy_for_the_whole_site) {
  TestServer server({}, [](HttpOptions& options) {
    options.address_of = [](const sockaddr_storage& address) {
      PeerAddress peer = PeerAddress::of(address);
      peer.site = "refused";
      return peer;
    };
  });
  RawClient client(server.port());
  client.send(request_text("POST", "/tenant", "", "x"));
  EXPECT_EQ(client.receive()->status, 503);
}

TEST(Networks, the_owner_of_a_key_is_a_tenant_wherever_the_request_comes_from) {
  TestServer server({}, [](HttpOptions& options) {
    make_one_site(options);
    options.authorize = [](const HttpHead&) { return std::string("alice"); };
  });
  RawClient client(server.port(), 0, hog_of_site(0).c_str());
  client.send(request_text("POST", "/tenant", "", "x"));
  EXPECT_EQ(client.receive()->body, "alice");
}

TEST(Networks, connections_of_one_network_make_space_for_anothers) {
  HttpLimits limits;
  limits.connections = limits.connections_per_address = 8;
  limits.over_limit_connections = 1;
  limits.head_deadline = limits.idle_deadline = 1h;
  TestServer server(limits);
  // Without requests: the gate learns only after the client that an answer has been sent.
  std::deque<RawClient> hogs;
  while (hogs.size() < limits.connections) hogs.emplace_back(server.port(), 0, kHog);
  RawClient victim(server.port(), 0, kVictim);
  victim.send(request_text("GET", "/hello"));
  EXPECT_EQ(victim.receive()->status, 200);
  EXPECT_EQ(hogs.front().receive()->status, 503);  // the oldest has gone
  EXPECT_TRUE(hogs.front().is_ended());
  EXPECT_EQ(server.rejections(HttpRejection::kConnections), 1U);
  // One of the network that has most does not take another's place.
  RawClient one_more(server.port(), 0, kHog);
  one_more.send(request_text("GET", "/hello"));
  EXPECT_EQ(one_more.receive()->status, 503);
  victim.send(request_text("GET", "/hello"));
  EXPECT_EQ(victim.receive()->status, 200);
}

}  // namespace
}  // namespace lockstep
