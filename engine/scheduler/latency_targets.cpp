#include "engine/scheduler/latency_targets.h"

#include <algorithm>

namespace lockstep {

double LatencyTargets::prompt_work(const PassCost& cost, size_t streams,
                                   std::span<const double> waiting) const {
  const double goal = first_token / 2;
  const double without_prompts = cost.seconds({.generated = streams});
  if (streams == 0) {
    const double worthwhile = 2 * (without_prompts + cost.prompt_overhead());
    return cost.work_within(std::max({goal, token, worthwhile}), 0);
  }
  double share = 0;  // of the time, that prompts need
  for (const double work : waiting) share += std::min(cost.prompt_seconds(work) / goal, 0.5);
  if (share >= 1) return cost.work_within(token, streams);
  const double worthwhile = without_prompts + 2 * cost.prompt_overhead();
  const double wanted = std::max({without_prompts / (1 - share), worthwhile, kFluentSeconds});
  return cost.work_within(std::min(wanted, token), streams);
}

}  // namespace lockstep
