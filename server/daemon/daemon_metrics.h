// The metric families of what the daemon is besides its engine and its HTTP server.
#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <vector>

#include "server/daemon/cache_publisher.h"
#include "server/daemon/reloads.h"

namespace lockstep {

// `publisher`: null where no KV events are published; they are counted as none then.
std::vector<prometheus::MetricFamily> daemon_families(uint64_t log_messages_dropped,
                                                      const Reloads::Outcome& last_reload,
                                                      const CachePublisher* publisher);

}  // namespace lockstep
