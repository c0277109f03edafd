// The engine's statistics as Prometheus' metric families.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "engine/engine.h"

namespace lockstep {

// Every series is there from the first scrape on, at 0.
std::vector<prometheus::MetricFamily> engine_families(const EngineStatistics& statistics,
                                                      const ModelInfo& info,
                                                      const std::string& model_name);

}  // namespace lockstep
