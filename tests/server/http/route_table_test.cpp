#include <gtest/gtest.h>

#include "server/http/http_route.h"

namespace lockstep {
namespace {

RouteTable table_of(std::vector<std::pair<std::string, std::string>> rows) {
  std::vector<HttpRoute> routes;
  for (auto& [method, pattern] : rows) routes.push_back({method, pattern, nullptr, false});
  return RouteTable(std::move(routes));
}

TEST(RouteTable, a_name_takes_one_whole_decoded_segment) {
  const RouteTable table = table_of({{"GET", "/v1/models/:id"}});
  EXPECT_EQ(table.match("GET", "/v1/models/a%2Fb").parameters.at("id"), "a/b");
  EXPECT_EQ(table.match("GET", "/v1/models/a").route->pattern, "/v1/models/:id");
  for (const char* path : {"/v1/models", "/v1/models/", "/v1/models/a/b", "/v1//a",
                           "/v1%2Fmodels/a", "//v1/models/a", "/V1/models/a", "/", ""}) {
    EXPECT_EQ(table.match("GET", path).route, nullptr) << path;
    EXPECT_EQ(table.match("GET", path).allow, "") << path;
  }
}

TEST(RouteTable, a_last_name_may_take_all_segments_that_are_left) {
  const RouteTable table = table_of({{"GET", "/v1/models/a/:x"}, {"GET", "/v1/models/:id*"}});
  const auto id = [&](std::string_view path) {
    const RouteMatch match = table.match("GET", path);
    return match.route == nullptr ? "none" : match.parameters.at("id");
  };
  EXPECT_EQ(id("/v1/models/m"), "m");
  EXPECT_EQ(table.match("GET", "/v1/models/m").route->pattern, "/v1/models/:id");
  EXPECT_EQ(id("/v1/models/org/model"), "org/model");
  EXPECT_EQ(id("/v1/models/org%2Fmodel"), "org/model");
  EXPECT_EQ(id("/v1/models/o%20g/b/c:d"), "o g/b/c:d");
  EXPECT_EQ(table.match("GET", "/v1/models/a/b").parameters.at("x"), "b");  // the first row
  EXPECT_EQ(table.match("PUT", "/v1/models/org/model").allow, "GET, HEAD");
  for (const char* path :
       {"/v1/models", "/v1/models/", "/v1/models//", "/v1/models/org/", "/v1/models//org",
        "/v1/models/org//model", "/v1//org/model", "/v2/models/org/model"}) {
    EXPECT_EQ(id(path), "none") << path;
  }
}

TEST(RouteTable, the_first_row_that_fits_is_taken) {
  const RouteTable table = table_of({{"GET", "/a/b"}, {"GET", "/a/:x"}, {"GET", "/"}});
  EXPECT_EQ(table.match("GET", "/a/b").route->pattern, "/a/b");
  EXPECT_TRUE(table.match("GET", "/a/b").parameters.empty());
  EXPECT_EQ(table.match("GET", "/a/c").route->pattern, "/a/:x");
  EXPECT_EQ(table.match("GET", "/").route->pattern, "/");
}

TEST(RouteTable, allow_lists_what_the_path_knows) {
  const RouteTable table = table_of({{"POST", "/a"}, {"GET", "/a"}, {"DELETE", "/:x"}});
  EXPECT_EQ(table.match("PUT", "/a").allow, "DELETE, GET, HEAD, POST");
  EXPECT_EQ(table.match("PUT", "/a").route, nullptr);
  EXPECT_EQ(table.match("HEAD", "/a").route->method, "GET");
  EXPECT_EQ(table.match("DELETE", "/a").route->pattern, "/:x");
}

}  // namespace
}  // namespace lockstep
