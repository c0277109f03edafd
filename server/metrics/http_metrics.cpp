#include "server/metrics/http_metrics.h"

#include <algorithm>
#include <array>

#include "server/metrics/families.h"

namespace lockstep {
namespace {

// Fine enough for /health at the short end and for a long answer at the other.
constexpr std::array kSecondsBounds = {0.005, 0.01, 0.025, 0.05, 0.1,  0.25,  0.5,   1.0,   2.5,
                                       5.0,   10.0, 20.0,  30.0, 60.0, 120.0, 240.0, 480.0, 960.0};
// Statuses whose series are there before they happen.
constexpr int kUsualStatuses[] = {200, 400, 404, 500, 503};
// A client may send any word as a method; the label takes these.
constexpr std::string_view kMethods[] = {"GET",    "HEAD",    "POST", "PUT",
                                         "DELETE", "OPTIONS", "PATCH"};

}  // namespace

HttpMetrics::Route& HttpMetrics::route(std::string_view pattern, std::string_view method) {
  const bool known = std::ranges::find(kMethods, method) != std::end(kMethods);
  return routes_
      .try_emplace(Key(pattern.empty() ? "none" : pattern, known ? method : "other"),
                   kSecondsBounds)
      .first->second;
}

void HttpMetrics::add_routes(const std::vector<HttpRoute>& routes) {
  const MutexLock lock(mutex_);
  for (const HttpRoute& added : routes) {
    for (const int status : kUsualStatuses) route(added.pattern, added.method).counts[status];
  }
}

void HttpMetrics::observe(const HttpRecord& record) {
  const MutexLock lock(mutex_);
  Route& counted = route(record.route, record.method);
  ++counted.counts[record.status];
  counted.seconds.observe(record.seconds);
}

// A thread that ends a request waits for this copy at most, not for what is made of it.
std::vector<HttpMetrics::Copy> HttpMetrics::copies() const {
  std::vector<Copy> copies;
  const MutexLock lock(mutex_);
  copies.reserve(routes_.size());
  for (const auto& [key, counted] : routes_) {
    copies.push_back({&key, counted.counts, counted.seconds.snapshot()});
  }
  return copies;
}

void HttpMetrics::add_server(const HttpServer& server) {
  const MutexLock lock(mutex_);
  servers_.push_back(&server);
}

void HttpMetrics::clear_servers() {
  const MutexLock lock(mutex_);
  servers_.clear();
}

HttpMetrics::Edges HttpMetrics::edges() const {
  Edges sum;
  const auto add = [](auto& sums, const auto& counters) {
    for (size_t index = 0; index < sums.size(); ++index) {
      sums[index] += counters[index].load(std::memory_order_relaxed);
    }
  };
  const MutexLock lock(mutex_);
  for (const HttpServer* server : servers_) {
    sum.connections += server->open_connections();
    add(sum.cuts, server->counters().cuts);
    add(sum.rejections, server->counters().rejections);
  }
  return sum;
}

std::vector<prometheus::MetricFamily> HttpMetrics::families() const {
  std::vector<Sample> counts;
  prometheus::MetricFamily seconds{"lockstep_http_request_duration_seconds",
                                   "Time from a request's arrival to the end of its answer.",
                                   prometheus::MetricType::Histogram,
                                   {}};
  for (const Copy& counted : copies()) {
    const auto& [route, method] = *counted.key;
    const MetricLabels labels = {{"route", route}, {"method", method}};
    for (const auto& [status, count] : counted.counts) {
      counts.push_back(
          {static_cast<double>(count), {labels[0], labels[1], {"code", std::to_string(status)}}});
    }
    add_histogram(seconds, counted.seconds, labels);
  }
  const auto by_reason = [](const auto& names, const auto& sums) {
    std::vector<Sample> samples;
    for (size_t index = 0; index < names.size(); ++index) {
      samples.push_back(
          {static_cast<double>(sums[index]), {{"reason", std::string(names[index])}}});
    }
    return samples;
  };
  const Edges edges = this->edges();
  return {counter_family("lockstep_http_requests_total",
                         "HTTP requests that were answered, by route, method and status.", counts),
          std::move(seconds),
          counter_family("lockstep_http_connections_cut_total",
                         "Connections that were closed because their client was too slow.",
                         by_reason(kHttpCutNames, edges.cuts)),
          counter_family("lockstep_http_rejected_total",
                         "Requests and connections that were refused without a handler.",
                         by_reason(kHttpRejectionNames, edges.rejections)),
          gauge_family("lockstep_http_connections", "Open HTTP connections.",
                       {{static_cast<double>(edges.connections)}})};
}

}  // namespace lockstep
