// Counts the requests of the HTTP layer by route, method and status.
#pragma once

#include <prometheus/metric_family.h>

#include <array>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/histogram.h"
#include "engine/base/mutex.h"
#include "server/http/http_options.h"
#include "server/http/http_route.h"
#include "server/http/http_server.h"

namespace lockstep {

class HttpMetrics {
 public:
  // Makes the series of these routes, at 0.
  void add_routes(const std::vector<HttpRoute>& routes);

  // From here on its open connections, and what it has cut and refused, are told: the sum of all
  // servers. Before it starts to serve.
  void add_server(const HttpServer& server);
  // Before the first of them is destroyed.
  void clear_servers();

  // Counts a finished request; by any thread.
  void observe(const HttpRecord& record);

  std::vector<prometheus::MetricFamily> families() const;

 private:
  struct Route {
    explicit Route(std::span<const double> bounds) : seconds(bounds) {}
    std::map<int, uint64_t> counts;  // by status
    Histogram seconds;
  };
  using Key = std::pair<std::string, std::string>;  // route, method

  struct Copy {
    const Key* key;  // of routes_, whose entries stay
    std::map<int, uint64_t> counts;
    HistogramSnapshot seconds;
  };

  // All servers' counts, by reason.
  struct Edges {
    size_t connections = 0;
    std::array<uint64_t, kHttpCutNames.size()> cuts = {};
    std::array<uint64_t, kHttpRejectionNames.size()> rejections = {};
  };

  std::vector<Copy> copies() const;
  Edges edges() const;
  Route& route(std::string_view pattern, std::string_view method) LOCKSTEP_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<Key, Route> routes_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<const HttpServer*> servers_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
