// The standard process_* metrics, read from /proc/self.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

namespace lockstep {

// A value that /proc does not give is left out.
std::vector<prometheus::MetricFamily> process_families();

}  // namespace lockstep
