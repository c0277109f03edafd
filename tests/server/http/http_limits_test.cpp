// Each limit at one below, exactly, one above and ten times, with the status that is due.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/http/raw_client.h"
#include "tests/server/http/test_server.h"

namespace lockstep {
namespace {

int status_of(TestServer& server, const std::string& sent) {
  RawClient client(server.port());
  client.send(sent);  // what the server does not take any more is no failure
  const auto response = client.receive();
  if (!response) return 0;
  EXPECT_EQ(response->headers.contains("connection"), response->status != 200);
  if (response->status != 200) {
    EXPECT_TRUE(client.is_ended());
  }
  return response->status;
}

// A request's bytes are free when the gate has heard that its handler is done, which may be after
// the client has its answer; its connection is gone later still.
void wait_for_open_connections(TestServer& server, size_t count) {
  while (server.server().open_connections() != count) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::vector<size_t> sizes_around(size_t limit) {
  return {limit - 1, limit, limit + 1, 10 * limit};
}

std::string head_of_size(size_t size) {
  std::string head = "GET /hello HTTP/1.1\r\nHost: test\r\n";
  constexpr size_t kLineBytes = 100;
  while (size - head.size() > 2 * kLineBytes) head += "X: " + std::string(95, 'x') + "\r\n";
  const size_t missing = size - head.size() - std::string("X: \r\n\r\n").size();
  return head + "X: " + std::string(missing, 'x') + "\r\n\r\n";
}

TEST(HttpLimits, a_head_has_at_most_head_bytes) {
  HttpLimits limits;
  limits.head_fields = 10'000;
  TestServer server(limits);
  for (const size_t size : sizes_around(limits.head_bytes)) {
    const std::string head = head_of_size(size);
    ASSERT_EQ(head.size(), size);
    EXPECT_EQ(status_of(server, head), size <= limits.head_bytes ? 200 : 431) << size;
  }
}

TEST(HttpLimits, a_head_without_end_is_cut_at_head_bytes) {
  TestServer server;
  EXPECT_EQ(status_of(server, "GET /hello HTTP/1.1\r\nX: " + std::string(1'000'000, 'x')), 431);
  EXPECT_EQ(status_of(server, "GET /" + std::string(1'000'000, 'x')), 414);
}

TEST(HttpLimits, a_head_has_at_most_head_fields) {
  TestServer server;
  const size_t limit = HttpLimits().head_fields;
  for (const size_t count : sizes_around(limit)) {
    std::string lines;
    for (size_t index = 1; index < count; ++index) lines += "A: b\r\n";  // Host is the first
    EXPECT_EQ(status_of(server, request_text("GET", "/hello", lines)), count <= limit ? 200 : 431)
        << count;
  }
}

TEST(HttpLimits, a_target_has_at_most_target_bytes) {
  HttpLimits limits;
  limits.head_bytes = 64 * 1024;
  TestServer server(limits);
  for (const size_t size : sizes_around(limits.target_bytes)) {
    const std::string target = "/hello?" + std::string(size - 7, 'q');
    EXPECT_EQ(status_of(server, request_text("GET", target)),
              size <= limits.target_bytes ? 200 : 414)
        << size;
  }
}

TEST(HttpLimits, a_body_with_length_has_at_most_body_bytes) {
  TestServer server;
  const size_t limit = HttpLimits().body_bytes;
  for (const size_t size : sizes_around(limit)) {
    const std::string request = request_text("POST", "/size", "", std::string(size, 'b'));
    EXPECT_EQ(status_of(server, request), size <= limit ? 200 : 413) << size;
  }
}

TEST(HttpLimits, a_body_in_chunks_has_at_most_body_bytes) {
  TestServer server;
  const size_t limit = HttpLimits().body_bytes;
  for (const size_t size : sizes_around(limit)) {
    std::string request = request_text("POST", "/size", "Transfer-Encoding: chunked\r\n");
    constexpr size_t kChunkBytes = 64 * 1024;
    for (size_t sent = 0; sent < size; sent += kChunkBytes) {
      const size_t bytes = std::min(kChunkBytes, size - sent);
      request += fmt::format("{:x}\r\n{}\r\n", bytes, std::string(bytes, 'c'));
    }
    EXPECT_EQ(status_of(server, request + "0\r\n\r\n"), size <= limit ? 200 : 413) << size;
  }
}

TEST(HttpLimits, other_limits_are_those_of_the_next_request_and_a_begun_one_keeps_its_own) {
  HttpLimits limits;
  TestServer server(limits);
  const std::string body(1000, 'b');
  RawClient begun(server.port());
  begun.send(request_text("POST", "/size", "Content-Length: 1000\r\n") + body.substr(1));
  // The gate takes events in their order, so these bytes are in when a later client has its answer.
  ASSERT_EQ(server.get("/health")->status, 200);
  RawClient kept(server.port());
  kept.send(request_text("POST", "/size", "", body));
  EXPECT_EQ(kept.receive()->status, 200);
  limits.body_bytes = 999;
  limits.head_fields = 2;
  server.server().set_limits(limits);
  EXPECT_EQ(status_of(server, request_text("POST", "/size", "", body)), 413);
  EXPECT_EQ(status_of(server, request_text("POST", "/size", "A: b\r\nC: d\r\n")), 431);
  kept.send(request_text("POST", "/size", "", body));
  EXPECT_EQ(kept.receive()->status, 413);
  begun.send("b");
  EXPECT_EQ(begun.receive()->status, 200);
  server.server().set_limits(HttpLimits());
  EXPECT_EQ(status_of(server, request_text("POST", "/size", "", body)), 200);
}

TEST(HttpLimits, limits_of_connections_can_be_changed_while_some_are_open) {
  TestServer server;
  RawClient first(server.port());
  first.send(request_text("GET", "/hello"));
  EXPECT_EQ(first.receive()->status, 200);
  HttpLimits limits;
  limits.connections_per_address = 1;
  server.server().set_limits(limits);
  EXPECT_EQ(server.get("/hello")->status, 503);
  first.send(request_text("GET", "/hello"));  // who is in stays in
  EXPECT_EQ(first.receive()->status, 200);
  limits.connections_per_address = 256;
  server.server().set_limits(limits);
  EXPECT_EQ(server.get("/hello")->status, 200);
}

TEST(HttpLimits, the_number_of_threads_can_be_changed_while_all_of_them_serve) {
  HttpLimits limits;
  limits.threads = 1;
  TestServer server(limits);
  RawClient first(server.port());
  first.send(request_text("GET", "/block"));
  ASSERT_TRUE(server.blocked.wait());
  limits.threads = 8;
  server.server().set_limits(limits);
  // Beside the one that is held there are others now.
  for (int count = 0; count < 20; ++count) EXPECT_EQ(server.get("/hello")->status, 200);
  limits.threads = 1;
  server.server().set_limits(limits);
  server.unblock.give();
  EXPECT_EQ(first.receive()->status, 200);
  for (int count = 0; count < 50; ++count) EXPECT_EQ(server.get("/hello")->status, 200);
  // The one that is left is held by a client that does not read: another waits for its end.
  RawClient endless(server.port(), 2048);
  endless.send(request_text("GET", "/endless"));
  ASSERT_TRUE(endless.receive_bytes(1000));
  RawClient waits(server.port());
  waits.send(request_text("GET", "/hello"));
  for (int count = 0; count < 50; ++count) EXPECT_EQ(server.get("/health")->status, 200);
  endless.reset();
  EXPECT_EQ(waits.receive()->status, 200);
  // The gate may not have reported the last answer yet.
  size_t answered_before = 0;
  for (const auto& record : server.records()) {
    if (record.route == "/endless") break;
    answered_before += record.route == "/hello" ? 1 : 0;
  }
  EXPECT_EQ(answered_before, 70U);
}

TEST(HttpLimits, a_body_that_its_handler_has_released_counts_no_more) {
  HttpLimits limits;
  limits.bodies_bytes = 3000;
  TestServer server(limits);
  RawClient first(server.port());
  first.send(request_text("POST", "/release", "", std::string(2000, 'b')));
  ASSERT_TRUE(server.blocked.wait());
  // The handler runs on; the gate hears of it in its own time.
  const std::string second = request_text("POST", "/size", "", std::string(2000, 'b'));
  int status = 503;
  for (int tries = 0; tries < 1000 && status == 503; ++tries) status = status_of(server, second);
  EXPECT_EQ(status, 200);
  server.unblock.give();
  EXPECT_EQ(first.receive()->body, "unblocked");
}

TEST(HttpLimits, all_bodies_together_have_at_most_bodies_bytes) {
  HttpLimits limits;
  limits.bodies_bytes = 3000;
  TestServer server(limits);
  RawClient first(server.port());
  first.send(request_text("POST", "/size", "Content-Length: 1500\r\n") + std::string(1499, 'b'));
  // The gate takes events in their order, so these bytes are in when a later client has its answer.
  ASSERT_EQ(server.get("/health")->status, 200);
  for (const size_t size : sizes_around(limits.bodies_bytes - 1499)) {
    const std::string request = request_text("POST", "/size", "", std::string(size, 'b'));
    EXPECT_EQ(status_of(server, request), size <= limits.bodies_bytes - 1499 ? 200 : 503) << size;
    wait_for_open_connections(server, 1);
  }
  first.send("b");
  EXPECT_EQ(first.receive()->body, "1500");
  first.close();
  // The bytes that a request held are free again when it has ended, however it ended.
  for (int count = 0; count < 10; ++count) {
    wait_for_open_connections(server, 0);
    EXPECT_EQ(status_of(server, request_text("POST", "/size", "", std::string(3000, 'b'))), 200);
    wait_for_open_connections(server, 0);
    EXPECT_EQ(status_of(server, request_text("POST", "/size", "", std::string(3001, 'b'))), 503);
  }
}

TEST(HttpLimits, of_all_answers_together_the_largest_is_given_up) {
  constexpr int kSmallBuffer = 2048;
  HttpLimits limits;
  limits.answers_bytes = 2'500'000;
  TestServer server(limits);
  const std::string small(1'000'000, 's');
  RawClient greedy(server.port(), kSmallBuffer);
  greedy.send(request_text("POST", "/echo", "", std::string(2'000'000, 'g')));
  RawClient modest(server.port(), kSmallBuffer);
  modest.send(request_text("POST", "/echo", "", small));
  // Neither takes anything before one is cut.
  while (server.cuts(HttpCut::kUnsent) == 0) std::this_thread::yield();
  EXPECT_FALSE(greedy.receive_bytes(2'000'000));
  EXPECT_TRUE(modest.receive()->body == small);
  EXPECT_EQ(server.cuts(HttpCut::kUnsent), 1U);
  // Requests that were given up or answered count no more.
  for (int count = 0; count < 5; ++count) {
    EXPECT_EQ(status_of(server, request_text("POST", "/echo", "", small)), 200);
  }
  EXPECT_EQ(server.cuts(HttpCut::kUnsent), 1U);
}

// Opens clients one after the other, each with one request that is answered, and checks that those
// above `limit` get 503.
void expect_limit_of_connections(TestServer& server, size_t limit, HttpRejection reason) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (size_t count = 1; count <= 10 * limit; ++count) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->send(request_text("GET", "/hello"));
    const auto response = clients.back()->receive();
    ASSERT_TRUE(response) << count;
    ASSERT_EQ(response->status, count <= limit ? 200 : 503) << count;
    if (count <= limit) continue;
    EXPECT_EQ(response->headers.at("connection"), "close");
    EXPECT_EQ(response->headers.at("retry-after"), "1");
    EXPECT_TRUE(clients.back()->is_ended());
    clients.pop_back();
  }
  EXPECT_EQ(server.rejections(reason), 9 * limit);
  clients.clear();
  wait_for_open_connections(server, 0);
  EXPECT_EQ(server.get("/hello")->status, 200);
}

TEST(HttpLimits, at_most_so_many_connections_are_open) {
  HttpLimits limits;
  limits.connections = 20;
  TestServer server(limits);
  expect_limit_of_connections(server, 20, HttpRejection::kConnections);
}

TEST(HttpLimits, at_most_so_many_connections_of_one_address_are_open) {
  HttpLimits limits;
  limits.connections_per_address = 20;
  TestServer server(limits);
  expect_limit_of_connections(server, 20, HttpRejection::kAddress);
}

TEST(HttpLimits, other_addresses_have_their_own_connections) {
  HttpLimits limits;
  limits.connections_per_address = 2;
  TestServer server(limits);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (const char* source : {"127.0.0.1", "127.0.0.2", "127.0.0.3"}) {
    for (const int status : {200, 200, 503}) {
      clients.push_back(std::make_unique<RawClient>(server.port(), 0, source));
      clients.back()->send(request_text("GET", "/hello"));
      EXPECT_EQ(clients.back()->receive()->status, status) << source;
    }
  }
}

TEST(HttpLimits, what_is_served_always_is_served_above_the_limits_too) {
  HttpLimits limits;
  limits.connections = 3;
  limits.over_limit_deadline = std::chrono::hours(1);
  TestServer server(limits);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int count = 0; count < 3; ++count) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->send(request_text("GET", "/hello"));
    EXPECT_EQ(clients.back()->receive()->status, 200);
  }
  for (int count = 0; count < 100; ++count) {
    const auto response = server.get("/health");
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 200);
    EXPECT_EQ(response->headers.at("connection"), "close");
  }
}

TEST(HttpLimits, clients_above_the_limits_that_say_nothing_make_space_for_a_probe) {
  HttpLimits limits;
  limits.connections = 1;
  limits.over_limit_deadline = std::chrono::hours(1);
  TestServer server(limits);
  RawClient regular(server.port());
  regular.send(request_text("GET", "/hello"));
  EXPECT_EQ(regular.receive()->status, 200);
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int count = 0; count < 200; ++count) {
    silent.push_back(std::make_unique<RawClient>(server.port()));
    if (count % 2 == 0) silent.back()->send("GET /hea");
  }
  EXPECT_EQ(server.get("/health")->status, 200);
  // Those that had to leave were told why.
  EXPECT_EQ(silent.front()->receive()->status, 503);
}

TEST(HttpLimits, a_body_that_is_encoded_is_415) {
  TestServer server;
  const auto encoded = [](const std::string& encoding) {
    return request_text("POST", "/size", "Content-Encoding: " + encoding + "\r\n", "body");
  };
  EXPECT_EQ(status_of(server, encoded("gzip")), 415);
  EXPECT_EQ(status_of(server, encoded("br")), 415);
  EXPECT_EQ(status_of(server, encoded("identity, gzip")), 415);
  EXPECT_EQ(status_of(server, encoded("\xff\xfe")), 415);
  EXPECT_EQ(status_of(server, encoded("Identity")), 200);
}

}  // namespace
}  // namespace lockstep
