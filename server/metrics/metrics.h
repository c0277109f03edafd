// Everything that GET /metrics tells, in Prometheus' text format.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/metrics/http_metrics.h"

namespace lockstep {

class Metrics {
 public:
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

  // `model_name` is the value of the label "model"; `aliases` says in whose names the main metrics
  // are told once more: "none" or "vllm". The engine must outlive this.
  Metrics(const Engine& engine, std::string model_name, std::string aliases = "none");

  HttpMetrics& http() { return http_; }

  // Families of other parts of the daemon, asked for at each scrape, on the scrape's thread. Before
  // the first one.
  using Source = std::function<std::vector<prometheus::MetricFamily>()>;
  void add_source(Source source) { sources_.push_back(std::move(source)); }

  // Takes no lock that a step needs.
  std::string text() const;

 private:
  const Engine& engine_;
  std::string model_name_;
  std::string aliases_;
  HttpMetrics http_;
  std::vector<Source> sources_;
};

}  // namespace lockstep
