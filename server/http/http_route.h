// Routes: a path and the handler that answers there, and the table of all of them.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_request.h"
#include "server/http/http_response.h"

namespace lockstep {

using HttpHandler = std::function<void(const HttpRequest&, HttpResponse&)>;

struct HttpRoute {
  std::string method;   // "GET", "POST"; a GET route answers HEAD as well
  std::string pattern;  // "/v1/models/:id"; ":name" takes one whole segment, a last ":name*" all
  HttpHandler handler;
  bool always = false;       // served even when all threads are busy (health, metrics)
  bool without_key = false;  // the same bytes for everybody: for HttpOptions::authorize
  // Why no request of this tenant (HttpRequest::tenant) can be taken now, if so: asked by the
  // gate's thread when one is whole, which is then refused for next to nothing. Must not block.
  std::function<std::optional<HttpRefusal>(const std::string& tenant)> busy = {};
};

// Which handler a path belongs to. Read from top to bottom: the first route that fits is taken.
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
