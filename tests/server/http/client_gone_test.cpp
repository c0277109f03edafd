// A client that leaves while its request is served: the handler learns of it at once.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "tests/server/http/raw_client.h"
#include "tests/server/http/test_server.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

void expect_handler_learns(void (*leave)(RawClient&)) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("GET", "/block"));
  ASSERT_TRUE(server.blocked.wait());
  leave(client);
  EXPECT_TRUE(server.client_left.wait());
  while (server.records().empty()) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(server.was_gone_in_handler);
  EXPECT_EQ(server.left, 1);
  EXPECT_TRUE(server.records().front().client_gone);
  EXPECT_EQ(server.records().front().status, 499);
}

TEST(ClientGone, closing_is_noticed) {
  expect_handler_learns([](RawClient& client) { client.close(); });
}

TEST(ClientGone, a_reset_is_noticed) {
  expect_handler_learns([](RawClient& client) { client.reset(); });
}

TEST(ClientGone, shutting_the_sending_side_counts_as_leaving) {
  expect_handler_learns([](RawClient& client) { client.shut_sending(); });
}

TEST(ClientGone, closing_with_a_second_request_behind_is_noticed) {
  expect_handler_learns([](RawClient& client) {
    client.send(request_text("GET", "/hello"));
    client.close();
  });
}

TEST(ClientGone, a_whole_answer_still_reaches_a_client_that_only_shut_its_sending_side) {
  TestServer server;
  for (int count = 0; count < 100; ++count) {
    RawClient client(server.port());
    client.send(request_text("GET", "/hello"));
    client.shut_sending();
    const auto response = client.receive();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->body, "hello");
    EXPECT_TRUE(client.is_ended());
  }
}

TEST(ClientGone, requests_that_came_whole_before_the_sending_side_was_shut_are_answered) {
  TestServer server;
  // More than one turn reads, and more than one look at the socket brings.
  constexpr int kRequests = 40;
  const std::string body(16 * 1024, 'b');
  std::string requests;
  for (int count = 0; count < kRequests; ++count) {
    requests += request_text("GET", "/hello") + request_text("POST", "/size", "", body);
  }
  RawClient client(server.port());
  ASSERT_TRUE(client.send(requests + "GET /hello HTTP/1.1\r\nHost: cut"));
  client.shut_sending();
  for (int count = 0; count < kRequests; ++count) {
    auto response = client.receive();
    ASSERT_TRUE(response) << count;
    EXPECT_EQ(response->body, "hello");
    response = client.receive();
    ASSERT_TRUE(response) << count;
    EXPECT_EQ(response->body, std::to_string(body.size()));
  }
  EXPECT_TRUE(client.is_ended());
  EXPECT_EQ(server.handled, 2 * kRequests);
}

TEST(ClientGone, nothing_is_answered_behind_what_was_given_up) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("GET", "/block") + request_text("GET", "/hello"));
  ASSERT_TRUE(server.blocked.wait());
  client.shut_sending();
  EXPECT_TRUE(client.is_ended());
  EXPECT_EQ(server.handled, 1);
}

TEST(ClientGone, a_stream_ends_when_its_reader_leaves) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("GET", "/endless"));
  ASSERT_TRUE(client.receive_bytes(100'000));
  client.reset();
  EXPECT_TRUE(server.write_failed.wait());
}

TEST(ClientGone, stop_tells_handlers_that_run) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("GET", "/block"));
  ASSERT_TRUE(server.blocked.wait());
  server.server().stop();
  EXPECT_EQ(server.left, 1);
  EXPECT_TRUE(client.is_ended());
}

TEST(ClientGone, no_callback_runs_after_it_was_taken_back) {
  TestServer server;
  for (int count = 0; count < 1000; ++count) {
    RawClient client(server.port());
    client.send(request_text("GET", "/guard"));
    if (count % 2 == 0) {
      client.reset();
    } else {
      client.shut_sending();
    }
  }
  server.server().stop();
  EXPECT_EQ(server.late, 0);
}

TEST(ClientGone, connections_are_free_again_after_many_leavings) {
  HttpLimits limits;
  limits.connections = 64;
  TestServer server(limits);
  for (int count = 0; count < 1000; ++count) {
    RawClient client(server.port());
    client.send(request_text("GET", count % 2 == 0 ? "/stream" : "/hello"));
    if (count % 3 == 0) client.reset();
  }
  // Those that the gate has not accepted yet count in no number: it is refused as long as they are
  // too many.
  while (server.get("/hello")->status != 200) std::this_thread::sleep_for(1ms);
  while (server.server().open_connections() > 0) std::this_thread::sleep_for(1ms);
}

}  // namespace
}  // namespace lockstep
