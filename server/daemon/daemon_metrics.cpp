#include "server/daemon/daemon_metrics.h"

#include "server/metrics/families.h"

namespace lockstep {

std::vector<prometheus::MetricFamily> daemon_families(uint64_t log_messages_dropped,
                                                      const Reloads::Outcome& last_reload) {
  return {counter_family("lockstep_log_messages_dropped_total",
                         "Log messages that could not be written: nobody read them fast enough, or "
                         "the disk was full.",
                         {{static_cast<double>(log_messages_dropped)}}),
          gauge_family("lockstep_config_last_reload_success",
                       "Whether the last reload of the configuration took effect; 1 until there "
                       "was one.",
                       {{last_reload.success ? 1.0 : 0.0}}),
          gauge_family("lockstep_config_last_reload_timestamp_seconds",
                       "When the configuration was last reloaded, or the daemon started, since "
                       "unix epoch in seconds.",
                       {{last_reload.unix_seconds}})};
}

}  // namespace lockstep
