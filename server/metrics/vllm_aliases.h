// Our metrics once more in vLLM's names, for dashboards, alerts and Kubernetes' inference gateway
// that were made for those.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

namespace lockstep {

// Of those of our families that vLLM has as well: with its names, its labels (model_name, engine,
// finished_reason) and our buckets. There is nothing for LoRA, since there are no adapters.
std::vector<prometheus::MetricFamily> vllm_aliases(
    const std::vector<prometheus::MetricFamily>& families);

}  // namespace lockstep
