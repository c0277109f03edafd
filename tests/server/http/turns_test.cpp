#include "server/http/turns.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/server/http/raw_client.h"
#include "tests/server/http/test_server.h"

namespace lockstep {
namespace {

TEST(Turns, go_round_among_clients_and_in_order_within_one) {
  Turns<int> turns;
  for (int item = 1; item <= 4; ++item) turns.add("many", item);
  turns.add("one", 10);
  turns.add("two", 20);
  turns.add("two", 21);
  EXPECT_EQ(turns.client_count(), 3U);
  std::vector<int> order;
  while (!turns.empty()) order.push_back(turns.next());
  EXPECT_EQ(order, (std::vector<int>{1, 10, 20, 2, 21, 3, 4}));
}

TEST(Turns, begin_anew_for_a_client_that_had_nothing_left) {
  Turns<int> turns;
  turns.add("first", 1);
  EXPECT_EQ(turns.next(), 1);
  EXPECT_TRUE(turns.empty());
  turns.add("second", 2);
  turns.add("first", 3);
  EXPECT_EQ(turns.next(), 2);
  EXPECT_EQ(turns.next(), 3);
  EXPECT_EQ(turns.client_count(), 0U);
}

TEST(Turns, pass_clients_over_that_may_not_go_and_keep_their_turns) {
  Turns<int> turns;
  turns.add("many", 1);
  turns.add("many", 2);
  turns.add("one", 10);
  turns.add("two", 20);
  const auto others = [](const std::string& client) { return client != "many"; };
  EXPECT_TRUE(turns.any(others));
  EXPECT_EQ(turns.next_of(others), 10);
  EXPECT_EQ(turns.next(), 1);
  EXPECT_EQ(turns.next_of(others), 20);
  EXPECT_FALSE(turns.any(others));
  EXPECT_EQ(turns.next_of(others), std::nullopt);
  EXPECT_EQ(turns.next(), 2);
  EXPECT_TRUE(turns.empty());
}

// The gate answers a malformed request by itself and reports it: the order of reports is that in
// which it has heard its clients.
TEST(GateTurns, an_address_of_many_connections_does_not_delay_another_ones_only_one) {
  Signal is_held;
  Signal release;
  std::mutex mutex;
  std::vector<std::string> order;
  TestServer server({}, [&](HttpOptions& options) {
    options.on_finished = [&](const HttpRecord& record) {
      if (record.remote_address.starts_with("127.0.0.4")) {
        is_held.give();
        release.wait();
        return;
      }
      const std::lock_guard lock(mutex);
      order.emplace_back(record.remote_address);
    };
  });
  const auto connect = [&](const char* source) {
    auto client = std::make_unique<RawClient>(server.port(), 0, source);
    client->send("nonsense\r\n\r\n");
    return client;
  };
  const auto holds = connect("127.0.0.4");
  ASSERT_TRUE(is_held.wait());
  // Meanwhile the gate hears nobody.
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int count = 0; count < 50; ++count) clients.push_back(connect("127.0.0.2"));
  clients.push_back(connect("127.0.0.3"));
  release.give();
  for (const auto& client : clients) {
    const auto response = client->receive();
    ASSERT_TRUE(response.has_value());
    EXPECT_EQ(response->status, 400);
  }
  const std::lock_guard lock(mutex);
  ASSERT_EQ(order.size(), 51U);
  EXPECT_TRUE(order[0].starts_with("127.0.0.3") || order[1].starts_with("127.0.0.3"));
}

}  // namespace
}  // namespace lockstep
