// Prometheus' metric families: those of the daemon's parts, and small words for making them out of
// numbers at hand.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "engine/base/histogram.h"
#include "engine/engine.h"

namespace lockstep {

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

struct Sample {
  double value = 0;
  MetricLabels labels = {};
};

prometheus::MetricFamily counter_family(std::string name, std::string help,
                                        const std::vector<Sample>& samples);
prometheus::MetricFamily gauge_family(std::string name, std::string help,
                                      const std::vector<Sample>& samples);
prometheus::MetricFamily histogram_family(std::string name, std::string help,
                                          const HistogramSnapshot& snapshot,
                                          const MetricLabels& labels);
// Adds another series to a histogram's family.
void add_histogram(prometheus::MetricFamily& family, const HistogramSnapshot& snapshot,
                   const MetricLabels& labels);

// The engine's statistics. Every series is there from the first scrape on, at 0.
std::vector<prometheus::MetricFamily> engine_families(const EngineStatistics& statistics,
                                                      const ModelInfo& info,
                                                      const std::string& model_name);

// The standard process_* metrics, read from /proc/self. A value that /proc does not give is left
// out.
std::vector<prometheus::MetricFamily> process_families();

// Our metrics once more in vLLM's names, for dashboards, alerts and Kubernetes' inference gateway
// that were made for those. Of those of our families that vLLM has as well: with its names, its
// labels (model_name, engine, finished_reason) and our buckets. There is nothing for LoRA, since
// there are no adapters.
std::vector<prometheus::MetricFamily> vllm_aliases(
    const std::vector<prometheus::MetricFamily>& families);

}  // namespace lockstep
