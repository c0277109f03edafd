// What the HTTP layer did, counted by route, method and status.
#pragma once

#include <prometheus/metric_family.h>

#include <atomic>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/histogram.h"
#include "server/http/http_server.h"

namespace lockstep {

class HttpMetrics {
 public:
  // Makes the series of these routes, at 0.
  void add_routes(const std::vector<HttpRoute>& routes);

  // From here on its open connections are told. Before it starts to serve.
  void set_server(const HttpServer* server) { server_ = server; }

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

  std::vector<Copy> copies() const;
  Route& route(std::string_view pattern, std::string_view method);

  mutable std::mutex mutex_;
  std::map<Key, Route> routes_;  // guarded by mutex_
  // Set once before the server starts, and cleared after it has stopped.
  std::atomic<const HttpServer*> server_ = nullptr;
};

}  // namespace lockstep
