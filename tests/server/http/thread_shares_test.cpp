// Requests that do not end until the test says so, and clients that come later.
#include "server/http/thread_shares.h"

#include <gtest/gtest.h>

#include <string>
#include <unordered_map>

#include "server/http/turns.h"

namespace lockstep {
namespace {

// Threads that serve, and requests that wait for them.
class Simulated {
 public:
  explicit Simulated(size_t threads) { shares.set_most(threads); }

  void submit(const std::string& client, const std::string& site) {
    shares.add(client, site);
    waiting_.add(client, client);
    serve();
  }
  void end(const std::string& client) {
    shares.end(client);
    --served_[client];
    serve();
  }
  size_t served(const std::string& client) { return served_[client]; }
  size_t busy() const { return shares.busy(); }

  ThreadShares shares;

 private:
  void serve() {
    const auto may_go = [this](const std::string& client) { return shares.may_begin(client); };
    while (const auto next = waiting_.next_of(may_go)) {
      shares.begin(*next);
      ++served_[*next];
    }
  }

  Turns<std::string> waiting_;
  std::unordered_map<std::string, size_t> served_;
};

std::string name(const char* kind, size_t number) {
  return kind + std::to_string(number);
}

constexpr size_t kThreads = 504;

TEST(ThreadShares, many_networks_of_one_site_leave_a_third_whatever_each_of_them_sends) {
  for (const size_t networks : {1U, 2U, 20U, 200U, 1000U}) {
    SCOPED_TRACE(networks);
    Simulated simulated(kThreads);
    for (size_t request = 0; request < 2000; ++request) {
      simulated.submit(name("hog", request % networks), "site");
    }
    EXPECT_EQ(simulated.busy(), kThreads * 2 / 3);
    for (size_t count = 0; count < kThreads / 3; ++count) {
      simulated.submit(name("new", count), name("other", count));
      EXPECT_EQ(simulated.served(name("new", count)), 1U);
    }
  }
}

TEST(ThreadShares, networks_of_many_sites_leave_an_eighth_to_those_that_have_none) {
  for (const size_t sites : {2U, 20U, 200U, 441U}) {
    SCOPED_TRACE(sites);
    Simulated simulated(kThreads);
    for (size_t request = 0; request < 2000; ++request) {
      const size_t hog = request % sites;
      simulated.submit(name("hog", hog), name("site", hog));
    }
    EXPECT_LE(simulated.busy(), kThreads - kThreads / 8);
    for (size_t count = 0; count < kThreads / 8; ++count) {
      simulated.submit(name("new", count), name("other", count));
      EXPECT_EQ(simulated.served(name("new", count)), 1U);
    }
  }
}

TEST(ThreadShares, where_all_are_held_a_client_that_comes_waits_for_a_request_of_each_at_most) {
  Simulated simulated(16);
  for (size_t request = 0; request < 160; ++request) {
    simulated.submit(name("hog", request % 16), name("site", request % 16));
  }
  EXPECT_EQ(simulated.busy(), 16U);
  simulated.submit("new", "other");
  EXPECT_EQ(simulated.served("new"), 0U);
  for (const char* ends : {"hog7", "hog7"}) simulated.end(ends);  // one of its own went first
  EXPECT_EQ(simulated.served("new"), 1U);
  EXPECT_EQ(simulated.busy(), 16U);
}

TEST(ThreadShares, clients_without_a_site_have_their_own_shares_alone) {
  Simulated simulated(24);
  for (size_t request = 0; request < 48; ++request) {
    simulated.submit(name("key", request % 2), "");
  }
  // Two of them have two fifths each, in whole threads; of one site they had a third each.
  EXPECT_EQ(simulated.served("key0"), 10U);
  EXPECT_EQ(simulated.served("key1"), 9U);
}

TEST(ThreadShares, are_forgotten_with_the_last_request) {
  ThreadShares shares;
  shares.set_most(2);
  shares.add("a", "site");
  shares.add("a", "site");
  shares.add("b", "site");
  shares.add("c", "");
  EXPECT_EQ(shares.client_count(), 3U);
  EXPECT_EQ(shares.site_count(), 1U);
  shares.begin("a");
  shares.drop("a");
  shares.drop("b");
  shares.drop("c");
  EXPECT_EQ(shares.client_count(), 1U);
  EXPECT_EQ(shares.site_count(), 1U);
  shares.end("a");
  EXPECT_EQ(shares.client_count(), 0U);
  EXPECT_EQ(shares.site_count(), 0U);
  EXPECT_EQ(shares.busy(), 0U);
}

}  // namespace
}  // namespace lockstep
