// Access is decided when a head is whole: before its body, before its path is said to exist.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/http/raw_client.h"
#include "tests/server/http/test_server.h"

namespace lockstep {
namespace {

// "alice" and "bob" may come in, with their names as keys; /health is open.
std::expected<std::string, HttpRefusal> know_names(const HttpHead& head) {
  if (head.route == "/health") return std::string();
  const std::string_view name = head.header("x-name");
  if (name == "alice" || name == "bob") return std::string(name);
  return std::unexpected(HttpRefusal{401, "who is that?", {{"WWW-Authenticate", "Bearer"}}});
}

void use_names(HttpOptions& options) {
  options.authorize = know_names;
}

TEST(Authorize, the_principal_reaches_handler_and_record) {
  TestServer server({}, use_names);
  RawClient client(server.port());
  for (const std::string name : {"alice", "bob"}) {
    client.send(request_text("GET", "/who", "X-Name: " + name + "\r\n"));
    EXPECT_EQ(client.receive()->body, name);
  }
  client.send(request_text("GET", "/health"));
  EXPECT_EQ(client.receive()->status, 200);
  client.close();
  while (server.server().open_connections() > 0) std::this_thread::yield();
  const auto records = server.records();
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[0].principal, "alice");
  EXPECT_EQ(records[1].principal, "bob");
  EXPECT_EQ(records[2].principal, "");
}

TEST(Authorize, whatever_a_stranger_asks_for_is_401_known_or_not) {
  TestServer server({}, use_names);
  const std::vector<std::pair<std::string, std::string>> asked = {
      {"GET", "/hello"},     {"POST", "/echo"},   {"GET", "/nowhere"},
      {"DELETE", "/hello"},  {"POST", "/health"}, {"GET", "//health"},
      {"GET", "/health/"},   {"GET", "/Health"},  {"GET", "/health/../who"},
      {"GET", "/%2fhealth"}, {"OPTIONS", "/who"}, {"GET", "/health;who"}};
  RawClient client(server.port());
  for (const auto& [method, path] : asked) {
    client.send(request_text(method, path));
    const auto response = client.receive(method);
    ASSERT_TRUE(response) << method << " " << path;
    EXPECT_EQ(response->status, 401) << method << " " << path;
    EXPECT_EQ(response->headers.at("www-authenticate"), "Bearer");
  }
  EXPECT_EQ(server.handled, 0);
  EXPECT_EQ(server.rejections(HttpRejection::kKey), asked.size());
}

TEST(Authorize, a_percent_encoded_spelling_is_the_path_it_stands_for) {
  TestServer server({}, use_names);
  EXPECT_EQ(server.get("/%68ealth")->status, 200);
  EXPECT_EQ(server.get("/%77ho")->status, 401);
}

TEST(Authorize, a_strangers_body_is_not_waited_for) {
  TestServer server({}, use_names);
  RawClient client(server.port());
  client.send(request_text("POST", "/echo", "Content-Length: 4000000\r\n"));
  EXPECT_EQ(client.receive()->status, 401);
  EXPECT_TRUE(client.is_ended());
}

TEST(Authorize, a_refused_expectation_gets_the_refusal_and_no_100) {
  TestServer server({}, use_names);
  RawClient client(server.port());
  client.send(request_text("POST", "/echo", "Content-Length: 4\r\nExpect: 100-continue\r\n"));
  EXPECT_EQ(client.receive()->status, 401);
}

TEST(Authorize, each_request_of_a_connection_is_judged_by_itself) {
  TestServer server({}, use_names);
  RawClient client(server.port());
  client.send(request_text("GET", "/who", "X-Name: alice\r\n") + request_text("GET", "/who") +
              request_text("GET", "/who", "X-Name: bob\r\n"));
  EXPECT_EQ(client.receive()->body, "alice");
  EXPECT_EQ(client.receive()->status, 401);
  EXPECT_EQ(client.receive()->body, "bob");
}

TEST(Authorize, clients_take_turns_however_many_requests_one_has_waiting) {
  HttpLimits limits;
  limits.threads = 1;
  TestServer server(limits, use_names);
  RawClient holds(server.port());
  holds.send(request_text("GET", "/block", "X-Name: alice\r\n"));
  ASSERT_TRUE(server.blocked.wait());
  std::vector<std::unique_ptr<RawClient>> waiting;
  const auto wait_for_turn = [&](const std::string& name) {
    waiting.push_back(std::make_unique<RawClient>(server.port()));
    waiting.back()->send(request_text("GET", "/who", "X-Name: " + name + "\r\n"));
  };
  for (int count = 0; count < 20; ++count) wait_for_turn("alice");
  wait_for_turn("bob");
  // The gate takes what came before it hears of this.
  while (server.server().open_connections() < 22) std::this_thread::yield();
  EXPECT_EQ(server.get("/health")->status, 200);
  server.unblock.give();
  EXPECT_EQ(waiting.back()->receive()->body, "bob");
  for (const auto& client : waiting) {
    if (client == waiting.back()) continue;
    EXPECT_EQ(client->receive()->body, "alice");
  }
  std::vector<std::string> order;
  for (const auto& record : server.records()) {
    if (record.route == "/who") order.push_back(record.principal);
  }
  ASSERT_GE(order.size(), 2U);
  EXPECT_TRUE(order[0] == "bob" || order[1] == "bob");
}

}  // namespace
}  // namespace lockstep
