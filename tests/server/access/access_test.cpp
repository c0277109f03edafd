// Access control by the head of a request.
#include "server/access/access.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>

namespace lockstep {
namespace {

using Fields = std::multimap<std::string, std::string>;

class AccessTest : public testing::Test {
 protected:
  ~AccessTest() override { std::filesystem::remove(file_); }

  void write(const std::string& rows) const {
    std::ofstream(file_) << R"({"keys":[)" << rows << "]}";
  }
  std::unique_ptr<Access> open(bool metrics_without_key = false) const {
    auto access = Access::open(file_, metrics_without_key);
    EXPECT_TRUE(access.has_value()) << access.error().message;
    return std::move(*access);
  }
  static std::expected<std::string, HttpRefusal> ask(Access& access, std::string_view route,
                                                     const Fields& fields) {
    return access.authorize({"GET", route, fields, "127.0.0.1"}, {});
  }
  // The status it is refused with; 0 if it is not.
  static int status(Access& access, std::string_view route, const Fields& fields = {}) {
    const auto answer = ask(access, route, fields);
    return answer ? 0 : answer.error().status;
  }

  const std::filesystem::path file_ =
      std::filesystem::temp_directory_path() / fmt::format("access_test.{}", getpid());
  const std::string alice_ = R"({"name":"alice","key":"alice's secret key"})";
  const Fields alices_ = {{"authorization", "Bearer alice's secret key"}};
};

TEST_F(AccessTest, without_a_file_everything_is_open) {
  auto access = Access::open("", false);
  ASSERT_TRUE(access.has_value());
  EXPECT_FALSE((*access)->is_on());
  EXPECT_EQ(status(**access, "/v1/models"), 0);
  EXPECT_EQ(status(**access, ""), 0);
}

TEST_F(AccessTest, with_a_file_all_but_health_needs_a_key) {
  write(alice_);
  const auto access = open();
  for (const char* route : {"", "/", "/v1/models", "/metrics", "/healthy", "/health2/live"}) {
    EXPECT_EQ(status(*access, route), 401) << route;
    EXPECT_EQ(ask(*access, route, alices_), "alice") << route;
  }
  for (const char* route : {"/health", "/health/live", "/health/ready"}) {
    EXPECT_EQ(status(*access, route), 0) << route;
  }
  EXPECT_EQ(ask(*access, "/v1/models", {}).error().headers.find("WWW-Authenticate")->second,
            "Bearer");
}

TEST_F(AccessTest, a_route_without_key_is_open_and_its_neighbours_are_not) {
  write(alice_);
  const auto access = open();
  const Fields none;
  EXPECT_EQ(access->authorize({"GET", "/", none, "127.0.0.1", true}, {}), "");
  EXPECT_EQ(access->authorize({"GET", "/ui/:name", none, "127.0.0.1", true}, {}), "");
  for (const char* route : {"", "/", "/ui/:name", "/ui"}) {
    EXPECT_EQ(status(*access, route), 401) << route;
  }
}

TEST_F(AccessTest, metrics_are_open_if_that_is_asked_for) {
  write(alice_);
  const auto access = open(true);
  EXPECT_EQ(status(*access, "/metrics"), 0);
  EXPECT_EQ(status(*access, "/v1/models"), 401);
}

TEST_F(AccessTest, a_key_comes_as_bearer_or_as_x_api_key) {
  write(alice_);
  const auto access = open();
  const std::string key = "alice's secret key";
  for (const Fields& fields :
       {Fields{{"authorization", "bearer " + key}}, Fields{{"authorization", "BEARER   " + key}},
        Fields{{"x-api-key", key}}, Fields{{"authorization", "Basic eA=="}, {"x-api-key", key}}}) {
    EXPECT_EQ(ask(*access, "/v1/models", fields), "alice");
  }
  for (const Fields& fields :
       {Fields{{"authorization", key}}, Fields{{"authorization", "Bearer"}},
        Fields{{"authorization", "Bearer "}}, Fields{{"authorization", "Bearer " + key + "x"}},
        Fields{{"authorization", "Bearer wrong"}, {"x-api-key", key}}, Fields{{"x-api-key", ""}}}) {
    EXPECT_EQ(status(*access, "/v1/models", fields), 401);
  }
}

TEST_F(AccessTest, a_reload_takes_effect_when_it_is_committed) {
  write(alice_);
  const auto access = open();
  write(R"({"name":"bob","key":"bob's secret key"})");
  const auto commit = access->prepare_reload();
  ASSERT_TRUE(commit.has_value());
  EXPECT_EQ(status(*access, "/v1/models", alices_), 0);
  (*commit)();
  EXPECT_EQ(status(*access, "/v1/models", alices_), 401);
  EXPECT_EQ(ask(*access, "/v1/models", {{"x-api-key", "bob's secret key"}}), "bob");
}

TEST_F(AccessTest, a_bad_file_changes_nothing) {
  write(alice_);
  const auto access = open();
  write("what?");
  EXPECT_FALSE(access->prepare_reload().has_value());
  EXPECT_EQ(status(*access, "/v1/models", alices_), 0);
  std::filesystem::remove(file_);
  EXPECT_FALSE(access->prepare_reload().has_value());
  EXPECT_FALSE(Access::open(file_, false).has_value());
}

TEST_F(AccessTest, too_many_requests_are_429_with_when_to_come_again) {
  write(R"({"name":"alice","key":"alice's secret key","requests_per_minute":2})");
  const auto access = open();
  EXPECT_EQ(status(*access, "/v1/models", alices_), 0);
  EXPECT_EQ(status(*access, "", alices_), 0);  // what is not there counts as well
  const auto refused = ask(*access, "/v1/models", alices_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 429);
  EXPECT_EQ(refused.error().headers.find("Retry-After")->second, "30");
  EXPECT_EQ(refused.error().headers.find("x-ratelimit-limit-requests")->second, "2");
  EXPECT_EQ(status(*access, "/metrics", alices_), 0);  // watching costs nothing
  EXPECT_EQ(status(*access, "/health"), 0);
}

}  // namespace
}  // namespace lockstep
