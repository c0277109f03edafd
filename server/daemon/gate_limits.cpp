#include "server/daemon/gate_limits.h"

#include <algorithm>

#include "engine/base/log.h"
#include "server/http/descriptor_shares.h"

namespace lockstep {
namespace {

// A few monitors, orchestrators and proxies ask for health and metrics.
constexpr size_t kProbeConnections = 256;

}  // namespace

GateLimits::Both GateLimits::now(size_t open_connections) {
  const MutexLock lock(mutex_);
  return share(open_connections);
}

void GateLimits::apply(HttpServer& all, HttpServer* probes) {
  const MutexLock lock(mutex_);
  const size_t open = all.open_connections() + (probes != nullptr ? probes->open_connections() : 0);
  const Both both = share(open);
  all.set_limits(both.all);
  if (probes != nullptr) probes->set_limits(both.probes);
}

void GateLimits::want(const HttpLimits& wanted, HttpServer& all, HttpServer* probes) {
  {
    const MutexLock lock(mutex_);
    wanted_ = wanted;
  }
  apply(all, probes);
}

GateLimits::Both GateLimits::share(size_t open_connections) {
  const size_t open = open_descriptors();
  const DescriptorShares wanted{
      .connections = wanted_.connections,
      .over_limit = wanted_.over_limit_connections,
      .probe_connections = has_probes_ ? std::min(wanted_.connections, kProbeConnections) : 0,
      .probe_over_limit = has_probes_ ? wanted_.over_limit_connections : 0,
      .kept = open - std::min(open, open_connections)};
  const size_t limit = raise_descriptor_limit(wanted);
  const DescriptorShares shares = share_descriptors(limit, wanted);
  Both both{wanted_, wanted_};
  both.all.connections = shares.connections;
  both.all.over_limit_connections = shares.over_limit;
  both.probes.connections = shares.probe_connections;
  both.probes.over_limit_connections = shares.probe_over_limit;
  both.probes.threads = 0;  // beside those for probes
  if (shares.connections < wanted.connections && shares.connections != warned_of_) {
    warned_of_ = shares.connections;
    spdlog::warn(
        "--max-connections is {}, but {} connections are admitted: this process may have {} files "
        "open, of which {} are for probes and {} for everything else. Raise the limit "
        "(LimitNOFILE, ulimit -n) or lower --max-connections",
        wanted.connections, shares.connections, limit,
        shares.over_limit + shares.probe_connections + shares.probe_over_limit, shares.kept);
  }
  return both;
}

}  // namespace lockstep
