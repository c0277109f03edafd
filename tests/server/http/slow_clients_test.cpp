// Clients that are slower than the limits allow are cut and delay nobody. No clock is asserted: a
// good client's request completes while the slow ones are still being waited for.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/http/raw_client.h"
#include "tests/server/http/test_server.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Clients = std::vector<std::unique_ptr<RawClient>>;

constexpr size_t kSlowClients = 100;
constexpr int kSmallReceiveBuffer = 4096;

Clients connect_many(const TestServer& server, size_t count, const std::string& sent) {
  Clients clients;
  for (size_t index = 0; index < count; ++index) {
    clients.push_back(std::make_unique<RawClient>(server.port(), kSmallReceiveBuffer));
    clients.back()->send(sent);
  }
  return clients;
}

TEST(SlowClients, heads_and_bodies_that_drip_hold_no_thread) {
  HttpLimits limits;
  limits.threads = 2;
  limits.head_deadline = limits.body_deadline = limits.body_grace = 1h;
  TestServer server(limits);
  const std::string head = request_text("GET", "/hello");
  const std::string post = request_text("POST", "/size", "", std::string(100, 'b'));
  Clients heads = connect_many(server, kSlowClients, "");
  Clients bodies = connect_many(server, kSlowClients, post.substr(0, post.size() - 100));
  for (size_t byte = 0; byte + 1 < head.size(); ++byte) {
    for (const auto& client : heads) ASSERT_TRUE(client->send(head.substr(byte, 1)));
    for (const auto& client : bodies) ASSERT_TRUE(client->send("b"));
    EXPECT_EQ(server.get("/hello")->status, 200);
  }
  // None of the slow ones was served or cut meanwhile: they all end well.
  EXPECT_EQ(server.handled, static_cast<int>(head.size()) - 1);
  for (const auto& client : heads) {
    client->send("\n");
    EXPECT_EQ(client->receive()->status, 200);
  }
  for (const auto& client : bodies) {
    client->send(std::string(100 - (head.size() - 1), 'b'));
    EXPECT_EQ(client->receive()->body, "100");
  }
}

TEST(SlowClients, a_head_that_takes_too_long_is_408_however_it_drips) {
  HttpLimits limits;
  limits.head_deadline = 100ms;
  TestServer server(limits);
  RawClient stalls(server.port());
  stalls.send("GET /he");
  EXPECT_EQ(stalls.receive()->status, 408);
  EXPECT_TRUE(stalls.is_ended());

  RawClient drips(server.port());
  drips.send("GET /hello HTTP/1.1\r\nX: ");
  while (server.records().size() < 2) {  // the deadline is absolute
    drips.send("x");
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(drips.receive()->status, 408);
  EXPECT_EQ(server.handled, 0);
  EXPECT_EQ(server.cuts(HttpCut::kHead), 2U);
}

TEST(SlowClients, a_body_that_takes_too_long_is_408) {
  HttpLimits limits;
  limits.body_deadline = 100ms;
  TestServer server(limits);
  Clients clients =
      connect_many(server, 10, request_text("POST", "/size", "Content-Length: 5\r\n"));
  for (const auto& client : clients) {
    client->send("b");
    EXPECT_EQ(client->receive()->status, 408);
    EXPECT_TRUE(client->is_ended());
  }
  EXPECT_EQ(server.cuts(HttpCut::kBody), 10U);
}

TEST(SlowClients, a_body_that_comes_more_slowly_than_it_must_is_408_long_before_its_deadline) {
  HttpLimits limits;
  limits.body_grace = 100ms;
  limits.body_bytes_per_second = 1'000'000;  // 10,000 bytes may take 10 ms after the grace
  limits.body_deadline = 1h;
  TestServer server(limits);
  for (const std::string& begin : {std::string(), std::string(10'000, 'b')}) {
    RawClient drips(server.port());
    drips.send(request_text("POST", "/size", "Content-Length: 1000000\r\n") + begin);
    while (server.cuts(HttpCut::kRate) < (begin.empty() ? 1U : 2U)) {
      drips.send("x");
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(drips.receive()->status, 408);
  }
  EXPECT_EQ(server.cuts(HttpCut::kBody), 0U);
  EXPECT_EQ(server.handled, 0);
}

TEST(SlowClients, a_body_that_is_fast_enough_may_take_longer_than_the_grace) {
  HttpLimits limits;
  limits.body_grace = 0ms;
  limits.body_bytes_per_second = 1;  // every byte earns a second
  TestServer server(limits);
  RawClient client(server.port());
  const std::string request = request_text("POST", "/size", "", std::string(2000, 'b'));
  client.send(request.substr(0, request.size() - 1000));
  for (int byte = 0; byte < 1000; ++byte) client.send("b");
  EXPECT_EQ(client.receive()->body, "2000");
}

TEST(SlowClients, a_connection_without_a_request_is_closed_after_the_idle_deadline) {
  HttpLimits limits;
  TestServer server(limits);
  RawClient kept(server.port());
  kept.send(request_text("GET", "/hello"));
  EXPECT_EQ(kept.receive()->status, 200);
  // From here on, so that who sends a request, however slowly, is not taken for silent.
  limits.idle_deadline = 100ms;
  server.server().set_limits(limits);
  kept.send(request_text("GET", "/hello"));
  EXPECT_EQ(kept.receive()->status, 200);
  EXPECT_TRUE(kept.is_ended());
  RawClient silent(server.port());
  EXPECT_TRUE(silent.is_ended());
  EXPECT_EQ(server.records().size(), 2U);  // silence is no request
  EXPECT_EQ(server.cuts(HttpCut::kIdle), 2U);
}

TEST(SlowClients, a_stream_that_nobody_reads_is_cut_and_write_says_so) {
  HttpLimits limits;
  limits.write_deadline = 200ms;
  TestServer server(limits);
  RawClient client(server.port(), kSmallReceiveBuffer);
  client.send(request_text("GET", "/endless"));
  EXPECT_TRUE(server.write_failed.wait());
  EXPECT_TRUE(server.was_gone_in_handler);
  while (server.server().open_connections() > 0) std::this_thread::sleep_for(1ms);
  // Both deadlines run: that of the gate for a client that takes nothing, that of the writer.
  EXPECT_EQ(server.cuts(HttpCut::kUnsent) + server.cuts(HttpCut::kWrite), 1U);
}

TEST(SlowClients, streams_that_nobody_reads_do_not_delay_others) {
  HttpLimits limits;
  limits.threads = 4;
  TestServer server(limits);  // the write deadline is far off
  Clients stalled = connect_many(server, 3, request_text("GET", "/endless"));
  for (int count = 0; count < 50; ++count) EXPECT_EQ(server.get("/hello")->status, 200);
  EXPECT_EQ(server.get("/health")->status, 200);
}

TEST(SlowClients, a_whole_answer_that_nobody_takes_is_cut) {
  HttpLimits limits;
  limits.write_deadline = 200ms;
  TestServer server(limits);
  RawClient client(server.port(), kSmallReceiveBuffer);
  // More than the kernel holds between both ends.
  client.send(request_text("POST", "/echo", "", std::string(4'000'000, 'b')));
  while (server.records().empty()) std::this_thread::sleep_for(1ms);
  while (server.server().open_connections() > 0) std::this_thread::sleep_for(1ms);
  const auto response = client.receive();
  EXPECT_TRUE(!response || !response->is_whole);
  EXPECT_EQ(server.cuts(HttpCut::kWrite), 1U);
}

TEST(SlowClients, a_whole_answer_that_is_taken_a_few_bytes_at_a_time_is_cut) {
  HttpLimits limits;
  limits.write_deadline = 300ms;
  limits.answer_bytes_per_second = 1'000'000'000;
  TestServer server(limits);
  RawClient client(server.port(), kSmallReceiveBuffer);
  client.send(request_text("POST", "/echo", "", std::string(4'000'000, 'b')));
  // It always takes something, which would keep a deadline for taking nothing away.
  size_t taken = 0;
  while (server.cuts(HttpCut::kWrite) == 0 && taken < 3'900'000) {
    if (!client.receive_bytes(4000)) break;
    taken += 4000;
    std::this_thread::sleep_for(2ms);
  }
  EXPECT_LT(taken, 3'900'000U);
  while (server.cuts(HttpCut::kWrite) == 0) std::this_thread::sleep_for(1ms);
  const auto response = client.receive();
  EXPECT_TRUE(!response || !response->is_whole);
}

TEST(SlowClients, a_stream_that_is_read_late_but_steadily_comes_whole) {
  TestServer server;
  RawClient client(server.port(), kSmallReceiveBuffer);
  client.send(request_text("GET", "/endless"));
  EXPECT_TRUE(client.receive_bytes(20'000'000));  // far more than may be owed at once
  client.close();
  EXPECT_TRUE(server.write_failed.wait());
}

}  // namespace
}  // namespace lockstep
