// Which handler a path belongs to. Read from top to bottom: the first route that fits is taken.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_route.h"

namespace lockstep {

struct RouteMatch {
  const HttpRoute* route = nullptr;  // nullptr: no route, or none for this method
  std::map<std::string, std::string> parameters;
  std::string allow;  // the methods that the path knows, as the Allow header lists them; "": none
};

class RouteTable {
 public:
  explicit RouteTable(std::vector<HttpRoute> routes);

  // `raw_path` as RequestTarget has it: segments are split first and decoded then.
  RouteMatch match(std::string_view method, std::string_view raw_path) const;

 private:
  struct Entry {
    HttpRoute route;
    std::vector<std::string> segments;
  };
  std::vector<Entry> entries_;
};

}  // namespace lockstep
