// The metric families of what the daemon is besides its engine and its HTTP server.
#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <vector>

#include "server/daemon/reloads.h"

namespace lockstep {

std::vector<prometheus::MetricFamily> daemon_families(uint64_t log_messages_dropped,
                                                      const Reloads::Outcome& last_reload);

}  // namespace lockstep
