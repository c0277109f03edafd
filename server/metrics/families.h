// Small words for making Prometheus' metric families out of numbers at hand.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "engine/base/histogram.h"

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

}  // namespace lockstep
