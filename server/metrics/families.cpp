#include "server/metrics/families.h"

#include <limits>
#include <utility>

namespace lockstep {
namespace {

prometheus::MetricFamily empty_family(std::string name, std::string help,
                                      prometheus::MetricType type) {
  return {std::move(name), std::move(help), type, {}};
}

}  // namespace

prometheus::MetricFamily counter_family(std::string name, std::string help,
                                        const std::vector<Sample>& samples) {
  auto family = empty_family(std::move(name), std::move(help), prometheus::MetricType::Counter);
  for (const Sample& sample : samples) {
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    metric.label = sample.labels;
    metric.counter.value = sample.value;
  }
  return family;
}

prometheus::MetricFamily gauge_family(std::string name, std::string help,
                                      const std::vector<Sample>& samples) {
  auto family = empty_family(std::move(name), std::move(help), prometheus::MetricType::Gauge);
  for (const Sample& sample : samples) {
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    metric.label = sample.labels;
    metric.gauge.value = sample.value;
  }
  return family;
}

prometheus::MetricFamily histogram_family(std::string name, std::string help,
                                          const HistogramSnapshot& snapshot,
                                          const MetricLabels& labels) {
  auto family = empty_family(std::move(name), std::move(help), prometheus::MetricType::Histogram);
  add_histogram(family, snapshot, labels);
  return family;
}

void add_histogram(prometheus::MetricFamily& family, const HistogramSnapshot& snapshot,
                   const MetricLabels& labels) {
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  metric.label = labels;
  metric.histogram.sample_sum = snapshot.sum;
  uint64_t cumulative = 0;
  for (size_t index = 0; index < snapshot.bucket_counts.size(); ++index) {
    cumulative += snapshot.bucket_counts[index];
    const double bound = index < snapshot.upper_bounds.size()
                             ? snapshot.upper_bounds[index]
                             : std::numeric_limits<double>::infinity();
    metric.histogram.bucket.push_back({cumulative, bound});
  }
  // The count is the buckets' own sum: Prometheus requires both to agree.
  metric.histogram.sample_count = cumulative;
}

}  // namespace lockstep
