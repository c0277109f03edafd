// Names that are made to stand for this machine (DNS rebinding) open nothing on it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <map>
#include <string>

#include "server/http/browser_rules.h"
#include "tests/server/http/raw_client.h"
#include "tests/server/http/test_server.h"

namespace lockstep {
namespace {

std::string name_of_machine() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  EXPECT_EQ(gethostname(name.data(), name.size() - 1), 0);
  return name.data();
}

int status_of(const AllowedHosts& hosts, std::string_view route, std::string_view address,
              const std::string& host) {
  const std::multimap<std::string, std::string> headers = {{"host", host}};
  const auto answer = hosts.authorize({.method = "GET",
                                       .route = route,
                                       .headers = headers,
                                       .remote_address = address,
                                       .without_key = false});
  EXPECT_EQ(answer.value_or(""), "");
  return answer ? 200 : answer.error().status;
}

TEST(AllowedHosts, what_cannot_be_made_to_stand_for_another_address_is_allowed) {
  const AllowedHosts hosts({});
  for (const std::string host : {"localhost", "localhost:8080", "LocalHost", "localhost.",
                                 "a.localhost", "a.b.localhost:1", "127.0.0.1", "127.0.0.1:8080",
                                 "192.0.2.7:80", "[::1]", "[::1]:8080", "[2001:DB8::1]:", ""}) {
    EXPECT_TRUE(hosts.allows(host)) << host;
  }
  EXPECT_TRUE(hosts.allows(name_of_machine() + ":8080"));
}

TEST(AllowedHosts, other_names_are_not_whatever_they_look_like) {
  const AllowedHosts hosts({});
  for (const std::string host :
       {"evil.example", "evil.example:8080", "localhost.evil.example", "evillocalhost",
        "127.0.0.1.evil.example", "127.0.0.1:8080:evil", "127.0.0.1:evil", "[::1].evil.example",
        "[::1]evil", "[::1", "::1", "[evil.example]", "0x7f.1", "2130706433", ".", ":8080", "*",
        "localhost evil.example", "localhost,evil.example"}) {
    EXPECT_FALSE(hosts.allows(host)) << host;
  }
}

TEST(AllowedHosts, those_that_are_named_are_allowed_on_any_port) {
  const AllowedHosts hosts({"LLM.example.org", "other.example.org:8443", "", "unix:/run/x.sock"});
  for (const std::string host : {"llm.example.org", "llm.EXAMPLE.org:1", "llm.example.org.",
                                 "other.example.org", "other.example.org:80"}) {
    EXPECT_TRUE(hosts.allows(host)) << host;
  }
  for (const std::string host : {"example.org", "a.llm.example.org", "unix", ":80", "."}) {
    EXPECT_FALSE(hosts.allows(host)) << host;
  }
  EXPECT_TRUE(AllowedHosts({"a.example", "*"}).allows("evil.example"));
}

TEST(AllowedHosts, concerns_clients_on_this_machine_and_all_but_health) {
  const AllowedHosts hosts({});
  const std::string evil = "evil.example";
  for (const char* address : {"127.0.0.1", "127.0.1.1", "::1"}) {
    for (const char* route : {"/v1/models", "/metrics", "/", "", "/healthy"}) {
      EXPECT_EQ(status_of(hosts, route, address, evil), 403) << address << route;
      EXPECT_EQ(status_of(hosts, route, address, "localhost"), 200) << address << route;
    }
    for (const char* route : {"/health", "/health/live", "/health/ready"}) {
      EXPECT_EQ(status_of(hosts, route, address, evil), 200) << address << route;
    }
  }
  for (const char* address : {"unix", "192.0.2.1", "10.127.0.1", "2001:db8::1"}) {
    EXPECT_EQ(status_of(hosts, "/v1/models", address, evil), 200) << address;
  }
}

TEST(AllowedHosts, a_refusal_names_host_and_option_and_the_connection_goes_on) {
  const AllowedHosts hosts({"test"});
  TestServer server({}, [&](HttpOptions& options) {
    options.authorize = [&](const HttpHead& head) { return hosts.authorize(head); };
  });
  RawClient client(server.port());
  for (const char* path : {"/hello", "/nowhere"}) {
    client.send(std::string("GET ") + path + " HTTP/1.1\r\nHost: evil.example:80\r\n\r\n");
    const auto refused = client.receive();
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->status, 403);
    EXPECT_THAT(refused->body, testing::AllOf(testing::HasSubstr("'evil.example:80'"),
                                              testing::HasSubstr("--allowed-hosts")));
  }
  EXPECT_EQ(server.handled, 0);
  client.send(request_text("GET", "/hello"));
  EXPECT_EQ(client.receive()->body, "hello");
}

}  // namespace
}  // namespace lockstep
