// The limits of the daemon's gates, of which there are one for all requests and perhaps one for
// probes: what the options ask for, as far as this process may have files open.
#pragma once

#include <cstddef>

#include "engine/base/mutex.h"
#include "server/http/http_server.h"

namespace lockstep {

class GateLimits {
 public:
  // `wanted`: as the options have them.
  GateLimits(const HttpLimits& wanted, bool has_probes)
      : wanted_(wanted), has_probes_(has_probes) {}

  struct Both {
    HttpLimits all;
    HttpLimits probes;
  };
  // The limits that can be had now, where so many connections are open. Raises this process's limit
  // of open files where it can, and warns where that is not enough. Any thread, as below.
  Both now(size_t open_connections);
  // Gives the gates what can be had; `probes` is null without one. Once more after the load, with
  // everything open that stays open.
  void apply(HttpServer& all, HttpServer* probes);
  void want(const HttpLimits& wanted, HttpServer& all, HttpServer* probes);

 private:
  Both share(size_t open_connections) LOCKSTEP_REQUIRES(mutex_);

  Mutex mutex_;
  HttpLimits wanted_ LOCKSTEP_GUARDED_BY(mutex_);
  const bool has_probes_;
  size_t warned_of_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // connections
};

}  // namespace lockstep
