#include "server/daemon/daemon_metrics.h"

#include "server/metrics/families.h"

namespace lockstep {

std::vector<prometheus::MetricFamily> daemon_families(uint64_t log_messages_dropped,
                                                      const Reloads::Outcome& last_reload,
                                                      const CachePublisher* publisher) {
  const uint64_t told = publisher == nullptr ? 0 : publisher->told_count();
  const uint64_t dropped = publisher == nullptr ? 0 : publisher->dropped_count();
  return {
      counter_family("lockstep_log_messages_dropped_total",
                     "Log messages that could not be written: they were not read fast enough, or "
                     "the disk was full.",
                     {{static_cast<double>(log_messages_dropped)}}),
      gauge_family("lockstep_config_last_reload_success",
                   "Whether the last reload of the configuration took effect; 1 until there "
                   "was one.",
                   {{last_reload.success ? 1.0 : 0.0}}),
      gauge_family("lockstep_config_last_reload_timestamp_seconds",
                   "When the configuration was last reloaded, or the daemon started, since "
                   "unix epoch in seconds.",
                   {{last_reload.unix_seconds}}),
      counter_family("lockstep_kv_events_total",
                     "Changes of the prefix cache that were to be published; see --kv-events.",
                     {{static_cast<double>(told)}}),
      counter_family("lockstep_kv_events_dropped_total",
                     "Changes of the prefix cache that were not published: they came faster than "
                     "they could be sent, or there was no memory. Subscribers see the gap.",
                     {{static_cast<double>(dropped)}})};
}

}  // namespace lockstep
