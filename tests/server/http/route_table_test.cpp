#include "server/http/route_table.h"

#include <gtest/gtest.h>

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
