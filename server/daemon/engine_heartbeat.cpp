#include "server/daemon/engine_heartbeat.h"

#include <utility>

namespace lockstep {

double EngineHeartbeat::age_seconds() {
  const EngineStatistics statistics = engine_.statistics();
  const bool idle = statistics.requests_running + statistics.requests_waiting == 0;
  const bool stepped = std::exchange(steps_, statistics.steps) != statistics.steps;
  const auto now = Clock::now();
  if (idle || stepped) moved_ = now;
  return std::chrono::duration<double>(now - moved_).count();
}

std::string EngineHeartbeat::describe() const {
  const EngineStatistics statistics = engine_.statistics();
  return fmt::format("{} sequences in the batch, {} requests waiting, pass {} since the start",
                     statistics.requests_running, statistics.requests_waiting,
                     statistics.steps + 1);
}

}  // namespace lockstep
