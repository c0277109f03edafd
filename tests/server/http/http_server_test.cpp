#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <set>
#include <thread>

#include "tests/server/http/raw_client.h"
#include "tests/server/http/test_server.h"

namespace lockstep {
namespace {

TEST(HttpServer, a_handlers_answer_comes_whole_with_length_and_type) {
  TestServer server;
  const auto response = server.get("/hello");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, "hello");
  EXPECT_EQ(response->headers.at("content-length"), "5");
  EXPECT_EQ(response->headers.at("content-type"), "text/plain");
  EXPECT_FALSE(response->headers.contains("connection"));
}

TEST(HttpServer, a_body_arrives_byte_for_byte_with_length_and_in_chunks) {
  TestServer server;
  std::string body;
  for (int value = 0; value < 256; ++value) body.push_back(static_cast<char>(value));
  RawClient client(server.port());
  client.send(request_text("POST", "/echo", "", body));
  EXPECT_EQ(client.receive()->body, body);
  client.send(request_text("POST", "/echo", "Transfer-Encoding: chunked\r\n"));
  client.send("FF\r\n" + body.substr(0, 255) + "\r\n01\r\n" + body.substr(255) + "\r\n0\r\n\r\n");
  EXPECT_EQ(client.receive()->body, body);
}

TEST(HttpServer, a_stream_comes_in_chunks_and_the_connection_is_kept) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("GET", "/stream"));
  const auto response = client.receive();
  ASSERT_TRUE(response);
  EXPECT_TRUE(response->is_whole);
  EXPECT_EQ(response->body, "onetwothree");
  EXPECT_EQ(response->headers.at("transfer-encoding"), "chunked");
  EXPECT_FALSE(response->headers.contains("content-length"));
  client.send(request_text("GET", "/hello"));
  EXPECT_EQ(client.receive()->body, "hello");
}

TEST(HttpServer, a_stream_to_an_http_1_0_client_ends_with_the_connection) {
  TestServer server;
  RawClient client(server.port());
  client.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto response = client.receive();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->body, "onetwothree");
  EXPECT_FALSE(response->headers.contains("transfer-encoding"));
  EXPECT_EQ(response->headers.at("connection"), "close");
}

TEST(HttpServer, an_http_1_0_client_is_kept_only_if_it_asks) {
  TestServer server;
  RawClient asks(server.port());
  asks.send("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(asks.receive()->headers.at("connection"), "keep-alive");
  asks.send("GET /hello HTTP/1.0\r\n\r\n");
  EXPECT_EQ(asks.receive()->headers.at("connection"), "close");
  EXPECT_TRUE(asks.is_ended());
}

TEST(HttpServer, connection_close_is_obeyed_and_said) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("GET", "/hello", "Connection: Keep-Alive, Close\r\n"));
  EXPECT_EQ(client.receive()->headers.at("connection"), "close");
  EXPECT_TRUE(client.is_ended());
}

TEST(HttpServer, pipelined_requests_are_answered_one_after_the_other_in_order) {
  TestServer server;
  RawClient client(server.port());
  std::string requests;
  for (int index = 0; index < 50; ++index) {
    requests += request_text("GET", "/models/" + std::to_string(index));
    requests += request_text("GET", "/nowhere");
  }
  client.send(requests);
  for (int index = 0; index < 50; ++index) {
    EXPECT_EQ(client.receive()->body, std::to_string(index));
    EXPECT_EQ(client.receive()->status, 404);
  }
}

TEST(HttpServer, any_number_of_pipelined_refusals_are_answered) {
  TestServer server;
  RawClient client(server.port());
  constexpr int kRequests = 3000;
  std::string requests;
  for (int index = 0; index < kRequests; ++index) requests += request_text("GET", "/nowhere");
  std::thread sender([&] { client.send(requests); });
  for (int index = 0; index < kRequests; ++index) ASSERT_EQ(client.receive()->status, 404) << index;
  sender.join();
  client.send(request_text("GET", "/hello"));
  EXPECT_EQ(client.receive()->body, "hello");
}

TEST(HttpServer, an_unknown_path_is_404_and_keeps_the_connection) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("GET", "/nowhere"));
  const auto response = client.receive();
  EXPECT_EQ(response->status, 404);
  EXPECT_EQ(response->headers.at("content-type"), "application/json");
  EXPECT_THAT(response->body, testing::StartsWith("404 "));
  client.send(request_text("GET", "/hello"));
  EXPECT_EQ(client.receive()->status, 200);
}

TEST(HttpServer, a_wrong_method_is_405_with_allow) {
  TestServer server;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"POST", "/hello"}, {"DELETE", "/hello"}, {"OPTIONS", "/hello"}, {"TRACE", "/hello"}};
  for (const auto& [method, path] : cases) {
    RawClient client(server.port());
    client.send(request_text(method, path));
    const auto response = client.receive();
    ASSERT_TRUE(response) << method;
    EXPECT_EQ(response->status, 405) << method;
    EXPECT_EQ(response->headers.at("allow"), "GET, HEAD") << method;
  }
  RawClient client(server.port());
  client.send(request_text("GET", "/echo"));
  EXPECT_EQ(client.receive()->headers.at("allow"), "POST");
}

TEST(HttpServer, head_has_the_head_of_get_and_no_body) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("HEAD", "/hello") + request_text("HEAD", "/stream") +
              request_text("HEAD", "/nowhere") + request_text("GET", "/hello"));
  const auto plain = client.receive("HEAD");
  EXPECT_EQ(plain->status, 200);
  EXPECT_EQ(plain->headers.at("content-length"), "5");
  EXPECT_EQ(client.receive("HEAD")->status, 200);
  EXPECT_EQ(client.receive("HEAD")->status, 404);
  EXPECT_EQ(client.receive()->body, "hello");
}

TEST(HttpServer, path_query_and_headers_reach_the_handler_as_they_are) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("GET", "/%72equest?a=%41&b", "X-TEST: \t a%0d%0ab \r\n"));
  EXPECT_EQ(client.receive()->body, "/request|a=%41&b|a%0d%0ab");
  client.send(request_text("GET", "/models/a%2Fb%20c"));
  EXPECT_EQ(client.receive()->body, "a/b c");
}

TEST(HttpServer, fields_that_the_library_could_act_on_change_nothing) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("GET", "/hello",
                           "Range: bytes=0-1\r\nAccept-Encoding: gzip, br\r\nAccept: ;;;\r\n"
                           "Upgrade: websocket\r\nConnection: Upgrade\r\n"
                           "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                           "Sec-WebSocket-Version: 13\r\nX-Forwarded-For: ,\r\n"));
  const auto response = client.receive();
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, "hello");
}

TEST(HttpServer, every_answer_bears_a_request_id_the_clients_or_a_new_one) {
  TestServer server;
  RawClient client(server.port());
  std::set<std::string> simulated;
  client.send(request_text("GET", "/hello", "X-Request-Id: mine-1\r\n"));
  EXPECT_EQ(client.receive()->headers.at("x-request-id"), "mine-1");
  client.send(request_text("GET", "/nowhere", "X-Request-Id: mine-2\r\n"));
  EXPECT_EQ(client.receive()->headers.at("x-request-id"), "mine-2");
  client.send(request_text("GET", "/hello", "X-Request-Id: " + std::string(128, 'i') + "\r\n"));
  EXPECT_EQ(client.receive()->headers.at("x-request-id"), std::string(128, 'i'));
  const std::vector<std::string> unusable = {"", "X-Request-Id: \r\n", "X-Request-Id: a b\r\n",
                                             "X-Request-Id: \xc3\xa4\r\n",
                                             "X-Request-Id: " + std::string(129, 'i') + "\r\n"};
  for (const std::string& line : unusable) {
    client.send(request_text("GET", "/stream", line));
    simulated.insert(client.receive()->headers.at("x-request-id"));
  }
  client.send("no request\r\n");
  simulated.insert(client.receive()->headers.at("x-request-id"));
  EXPECT_EQ(simulated.size(), unusable.size() + 1);
  for (const std::string& id : simulated) EXPECT_EQ(id.size(), 32U) << id;
}

TEST(HttpServer, a_handler_that_throws_or_says_nothing_is_500_and_the_server_goes_on) {
  TestServer server;
  EXPECT_EQ(server.get("/throw")->status, 500);
  EXPECT_EQ(server.get("/silent")->status, 500);
  EXPECT_EQ(server.get("/hello")->status, 200);
}

TEST(HttpServer, expect_100_continue_is_answered_before_the_body) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("POST", "/echo", "Expect: 100-continue\r\nContent-Length: 4\r\n"));
  EXPECT_EQ(client.receive()->status, 100);
  client.send("body");
  EXPECT_EQ(client.receive()->body, "body");
}

TEST(HttpServer, expect_100_continue_for_what_will_be_refused_gets_the_refusal) {
  TestServer server;
  RawClient too_long(server.port());
  too_long.send(
      request_text("POST", "/echo", "Expect: 100-continue\r\nContent-Length: 9999999\r\n"));
  EXPECT_EQ(too_long.receive()->status, 413);
  RawClient nowhere(server.port());
  nowhere.send(request_text("POST", "/nowhere", "Expect: 100-continue\r\nContent-Length: 4\r\n"));
  EXPECT_EQ(nowhere.receive()->status, 404);
  EXPECT_TRUE(nowhere.is_ended());
  RawClient other(server.port());
  other.send(request_text("POST", "/echo", "Expect: the best\r\nContent-Length: 4\r\n"));
  EXPECT_EQ(other.receive()->status, 417);
}

TEST(HttpServer, routes_marked_always_are_answered_while_all_threads_are_busy) {
  HttpLimits limits;
  limits.threads = 1;
  TestServer server(limits);
  RawClient busy(server.port());
  busy.send(request_text("GET", "/block"));
  ASSERT_TRUE(server.blocked.wait());
  RawClient waits(server.port());
  waits.send(request_text("GET", "/hello"));
  for (int count = 0; count < 10; ++count) EXPECT_EQ(server.get("/health")->body, "healthy");
  EXPECT_EQ(server.handled, 11);  // not that of the request that waits
  server.unblock.give();
  EXPECT_EQ(busy.receive()->body, "unblocked");
  EXPECT_EQ(waits.receive()->body, "hello");
}

// The only thing that the gate's thread calls and that a test can hold.
TEST(HttpServer, a_gate_that_is_held_tells_for_how_long) {
  Signal entered;
  Signal leave;
  TestServer server({}, [&](HttpOptions& options) {
    options.authorize = [&](const HttpHead&) -> std::expected<std::string, HttpRefusal> {
      entered.give();
      leave.wait();
      return std::string();
    };
  });
  RawClient client(server.port());
  client.send(request_text("GET", "/hello"));
  ASSERT_TRUE(entered.wait());
  const double first = server.server().turn_seconds();
  double later = first;
  while (later <= first) later = server.server().turn_seconds();
  EXPECT_GT(first, 0);
  leave.give();
  EXPECT_EQ(client.receive()->body, "hello");
  while (server.server().turn_seconds() > 0) std::this_thread::yield();
}

TEST(HttpServer, a_busy_route_refuses_without_a_handler_and_keeps_the_connection) {
  HttpLimits limits;
  limits.bodies_bytes = 5000;
  TestServer server(limits);
  server.is_busy = true;
  RawClient client(server.port());
  for (int count = 0; count < 10; ++count) {  // together more than bodies_bytes
    client.send(request_text("POST", "/queue", "", std::string(2000, 'b')));
    const auto refused = client.receive();
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->status, 503);
    EXPECT_EQ(refused->headers.at("retry-after"), "7");
    EXPECT_EQ(refused->body, "the route's own words");
  }
  EXPECT_EQ(server.handled, 0);
  EXPECT_EQ(server.records().size(), 10U);
  server.is_busy = false;
  client.send(request_text("POST", "/queue", "", std::string(2000, 'b')));
  EXPECT_EQ(client.receive()->body, "2000");
}

TEST(HttpServer, every_request_is_recorded_once_refusals_included) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("GET", "/models/x", "X-Request-Id: one\r\n"));
  client.receive();
  client.send(request_text("GET", "/nowhere", "X-Request-Id: two\r\n"));
  client.receive();
  client.send("\x16\x03\x01");
  client.receive();
  server.server().stop();
  const auto records = server.records();
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[0].route, "/models/:id");
  EXPECT_EQ(records[0].request_id, "one");
  EXPECT_EQ(records[0].status, 200);
  EXPECT_EQ(records[1].route, "");
  EXPECT_EQ(records[1].status, 404);
  EXPECT_EQ(records[2].status, 400);
}

TEST(HttpServer, a_handlers_note_comes_with_the_record_of_its_request_alone) {
  TestServer server;
  RawClient client(server.port());
  for (const char* const path : {"/note", "/hello", "/nowhere", "/note"}) {
    client.send(request_text("GET", path));
    client.receive();
  }
  server.server().stop();
  const auto records = server.records();
  ASSERT_EQ(records.size(), 4U);
  for (const SeenRecord& record : records) {
    const auto* note = std::any_cast<std::string>(&record.note);
    if (record.route == "/note") {
      ASSERT_NE(note, nullptr);
      EXPECT_EQ(*note, "/note");
    } else {
      EXPECT_FALSE(record.note.has_value()) << record.route;
    }
  }
}

TEST(HttpServer, a_port_that_is_taken_is_an_error_that_names_it) {
  TestServer server;
  HttpOptions options;
  options.port = server.port();
  const auto second = HttpServer::bind(options, {});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(second.error().message, testing::HasSubstr(std::to_string(server.port())));
  options.host = "no.such.host.invalid";
  EXPECT_EQ(HttpServer::bind(options, {}).error().kind, ErrorKind::kInvalidInput);
}

TEST(HttpServer, after_stop_accepting_what_runs_ends_well_and_nobody_else_is_let_in) {
  TestServer server;
  RawClient running(server.port());
  running.send(request_text("GET", "/block"));
  ASSERT_TRUE(server.blocked.wait());
  RawClient idle(server.port());
  idle.send(request_text("GET", "/hello"));
  EXPECT_EQ(idle.receive()->body, "hello");
  server.server().stop_accepting();
  EXPECT_FALSE(can_connect(server.port()));
  EXPECT_TRUE(idle.is_ended());
  server.unblock.give();
  const auto response = running.receive();
  EXPECT_EQ(response->body, "unblocked");
  EXPECT_EQ(response->headers.at("connection"), "close");
}

TEST(HttpServer, stop_cuts_open_connections_of_every_kind_and_returns) {
  TestServer server;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int count = 0; count < 8; ++count) {
    const std::string chunked = request_text("POST", "/echo", "Transfer-Encoding: chunked\r\n");
    for (const std::string& sent :
         {std::string(), std::string("GET /he"), chunked + "5\r\nab",
          request_text("GET", "/endless"), request_text("GET", "/block")}) {
      clients.push_back(std::make_unique<RawClient>(server.port()));
      clients.back()->send(sent);
    }
  }
  ASSERT_TRUE(server.blocked.wait());
  server.server().stop();
  EXPECT_TRUE(clients.front()->is_ended());
  EXPECT_FALSE(can_connect(server.port()));
}

TEST(HttpServer, a_server_that_never_started_stops) {
  HttpOptions options;
  options.port = 0;
  const auto server = HttpServer::bind(options, {});
  ASSERT_TRUE(server.has_value());
  EXPECT_NE((*server)->port(), 0);
  (*server)->stop();
}

TEST(HttpServer, without_descriptors_it_waits_and_serves_again_when_there_are_some) {
  TestServer server;
  RawClient before(server.port());
  before.send(request_text("GET", "/hello"));
  EXPECT_EQ(before.receive()->status, 200);
  rlimit old_limit{};
  getrlimit(RLIMIT_NOFILE, &old_limit);
  const rlimit tight{256, old_limit.rlim_max};
  setrlimit(RLIMIT_NOFILE, &tight);
  std::vector<Descriptor> fillers;
  do {
    fillers.emplace_back(dup(0));
  } while (fillers.back().is_open());
  fillers.resize(fillers.size() - 2);  // the one that failed, and one for the client
  RawClient waiting(server.port());    // so that the server has none to accept it with
  waiting.send(request_text("GET", "/hello"));
  before.send(request_text("GET", "/hello"));
  EXPECT_EQ(before.receive()->status, 200);  // connections that are open are served
  fillers.clear();
  setrlimit(RLIMIT_NOFILE, &old_limit);
  EXPECT_EQ(waiting.receive()->status, 200);
}

TEST(HttpServer, many_clients_at_once_each_get_their_own_answer) {
  TestServer server;
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      RawClient client(server.port());
      for (int count = 0; count < 200; ++count) {
        const std::string mine = std::to_string(thread) + "-" + std::to_string(count);
        client.send(request_text("POST", "/echo", "", mine));
        const auto response = client.receive();
        if (response && response->body == mine) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 8 * 200);
}

TEST(HttpServer, a_refusal_is_worded_for_the_path_that_was_asked_for_however_early_it_comes) {
  TestServer server;
  const auto refusal = [&](const std::string& sent) {
    RawClient client(server.port());
    client.send(sent);
    return client.receive().value_or(RawResponse()).body;
  };
  EXPECT_THAT(refusal("POST /v1/x?q HTTP/1.1\r\nX: " + std::string(100'000, 'x')),
              testing::AllOf(testing::StartsWith("431 "), testing::EndsWith(" at /v1/x")));
  EXPECT_THAT(refusal("POST /v1/x HTTP/1.1\r\nno field\r\n\r\n"),
              testing::AllOf(testing::StartsWith("400 "), testing::EndsWith(" at /v1/x")));
  EXPECT_THAT(refusal(request_text("POST", "/v1/x?q", "Content-Length: 99\r\n")),
              testing::AllOf(testing::StartsWith("404 "), testing::EndsWith(" at /v1/x")));
  EXPECT_THAT(refusal(request_text("POST", "/size", "Content-Length: 99999999\r\n")),
              testing::AllOf(testing::StartsWith("413 "), testing::EndsWith(" at /size")));
  EXPECT_THAT(refusal("GET /throw HTTP/1.1\r\nHost: a\r\n\r\n"),
              testing::AllOf(testing::StartsWith("500 "), testing::EndsWith(" at /throw")));
  EXPECT_THAT(refusal("\x01"), testing::EndsWith(" at "));
}

}  // namespace
}  // namespace lockstep
