// Pages of other origins: nothing unless configured, and then those that are listed alone.
#include <gtest/gtest.h>

#include <string>

#include "tests/server/http/raw_client.h"
#include "tests/server/http/test_server.h"

namespace lockstep {
namespace {

constexpr const char* kAllowOrigin = "access-control-allow-origin";
const std::string kGood = "https://chat.example.org";
const std::string kPreflight =
    "Access-Control-Request-Method: POST\r\n"
    "Access-Control-Request-Headers: authorization,content-type\r\n";

std::string origin(const std::string& name) {
  return "Origin: " + name + "\r\n";
}

void allow_good(HttpOptions& options) {
  options.cors_origins = {kGood};
}

RawResponse ask(TestServer& server, const std::string& method, const std::string& path,
                const std::string& lines) {
  RawClient client(server.port());
  client.send(request_text(method, path, lines));
  return client.receive(method).value_or(RawResponse());
}

TEST(Cors, is_off_unless_configured) {
  TestServer server;
  const RawResponse answer = ask(server, "GET", "/hello", origin(kGood));
  EXPECT_EQ(answer.status, 200);
  EXPECT_FALSE(answer.headers.contains(kAllowOrigin));
  EXPECT_FALSE(answer.headers.contains("vary"));
  EXPECT_EQ(ask(server, "OPTIONS", "/hello", origin(kGood) + kPreflight).status, 405);
}

TEST(Cors, a_listed_origin_may_read_answers_and_refusals) {
  TestServer server({}, allow_good);
  for (const char* path : {"/hello", "/stream", "/nowhere"}) {
    const RawResponse answer = ask(server, "GET", path, origin(kGood));
    EXPECT_EQ(answer.headers.at(kAllowOrigin), kGood) << path;
    EXPECT_EQ(answer.headers.at("vary"), "Origin") << path;
    EXPECT_NE(answer.headers.at("access-control-expose-headers").find("X-Request-Id"),
              std::string::npos);
    EXPECT_FALSE(answer.headers.contains("access-control-allow-credentials"));
  }
}

TEST(Cors, others_get_no_leave_and_no_answer_of_theirs_is_cached_for_the_listed) {
  TestServer server({}, allow_good);
  for (const std::string other :
       {"https://evil.example.org", "null", "https://chat.example.org.evil.net",
        "http://chat.example.org", "https://chat.example.org:8443", ""}) {
    const RawResponse answer = ask(server, "GET", "/hello", origin(other));
    EXPECT_EQ(answer.status, 200);
    EXPECT_FALSE(answer.headers.contains(kAllowOrigin)) << other;
    EXPECT_EQ(answer.headers.at("vary"), "Origin");
    EXPECT_EQ(ask(server, "OPTIONS", "/hello", origin(other) + kPreflight).status, 405) << other;
  }
}

TEST(Cors, a_preflight_of_a_listed_origin_is_answered_without_a_key) {
  TestServer server({}, [](HttpOptions& options) {
    allow_good(options);
    options.authorize = [](const HttpHead&) -> std::expected<std::string, HttpRefusal> {
      return std::unexpected(HttpRefusal{401, "no"});
    };
  });
  const RawResponse answer = ask(server, "OPTIONS", "/echo", origin(kGood) + kPreflight);
  EXPECT_EQ(answer.status, 204);
  EXPECT_EQ(answer.headers.at(kAllowOrigin), kGood);
  EXPECT_EQ(answer.headers.at("access-control-allow-methods"), "GET, HEAD, POST");
  EXPECT_EQ(answer.headers.at("access-control-allow-headers"), "authorization,content-type");
  EXPECT_FALSE(answer.headers.contains("content-length"));
  EXPECT_FALSE(answer.headers.contains("content-type"));
  EXPECT_EQ(ask(server, "OPTIONS", "/echo", origin("https://evil.org") + kPreflight).status, 401);
  EXPECT_EQ(ask(server, "OPTIONS", "/echo", origin(kGood)).status, 401);  // no preflight
  EXPECT_EQ(ask(server, "GET", "/hello", origin(kGood)).headers.at(kAllowOrigin), kGood);
  EXPECT_EQ(server.handled, 0);
}

TEST(Cors, a_connection_goes_on_after_a_preflight) {
  TestServer server({}, allow_good);
  RawClient client(server.port());
  client.send(request_text("OPTIONS", "/echo", origin(kGood) + kPreflight) +
              request_text("POST", "/echo", origin(kGood), "body"));
  EXPECT_EQ(client.receive()->status, 204);
  EXPECT_EQ(client.receive()->body, "body");
}

TEST(Cors, a_star_is_every_origin) {
  TestServer server({}, [](HttpOptions& options) { options.cors_origins = {"*"}; });
  EXPECT_EQ(ask(server, "GET", "/hello", origin("https://any.org")).headers.at(kAllowOrigin),
            "https://any.org");
  EXPECT_FALSE(ask(server, "GET", "/hello", "").headers.contains(kAllowOrigin));
}

}  // namespace
}  // namespace lockstep
