// A running daemon: its parts, and the one place that says in which order they start and end.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "server/access/access.h"
#include "server/api/common/served_model.h"
#include "server/daemon/cache_publisher.h"
#include "server/daemon/daemon_log.h"
#include "server/daemon/gate_limits.h"
#include "server/daemon/memory_store.h"
#include "server/daemon/reloads.h"
#include "server/daemon/service_notifier.h"
#include "server/daemon/status_report.h"
#include "server/daemon/watchdog.h"
#include "server/http/http_server.h"
#include "server/metrics/metrics.h"
#include "server/options/options.h"

namespace lockstep {

class Daemon {
 public:
  // An engine that is open and not loaded. `values` are the options in effect, `sources` where
  // SIGHUP finds them again. `log` outlives it, and so does `waiting`, which the engine tells.
  Daemon(std::unique_ptr<Engine> engine, OptionValues values, OptionSources sources, DaemonLog& log,
         const WaitingStatus& waiting);
  ~Daemon();

  // Serves until the first SIGTERM or SIGINT and what may follow it (--drain-seconds); a second one
  // leaves at once, without unwinding, and so does one during the load. Blocks; called once, after
  // block_signals(Hangup::kReloads). Fails when it cannot listen or load. When the engine fails the
  // process ends with exit code 1, as soon as its clients have been told.
  Result<void> run();

  // Other parts of the daemon hook into these, before run().
  Reloads& reloads() { return reloads_; }
  Engine& engine() { return *engine_; }
  ServiceNotifier& notifier() { return notifier_; }

 private:
  Result<void> start();
  void stop();
  [[noreturn]] void stop_failed();

  Result<void> listen();
  Result<void> listen_for_probes(const HttpOptions& http, std::vector<HttpRoute> probes);
  std::vector<HttpServer*> servers() const;  // those that there are
  void log_listeners() const;
  Heartbeat heartbeat() const;
  Result<void> publish_cache();
  Result<void> load();
  void watch_engine();
  void add_reloads();
  void start_reloads();
  void signal_to_stop();
  void wait_for_last_bytes() const;

  const Options options_;
  DaemonLog& log_;
  const WaitingStatus& waiting_;
  std::unique_ptr<CachePublisher> publisher_;  // outlives the engine; none: no KV events
  std::unique_ptr<Engine> engine_;
  ServedModel model_;
  Metrics metrics_;
  ServiceNotifier notifier_;
  MemoryStore store_;
  std::unique_ptr<Access> access_;
  GateLimits gate_limits_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<HttpServer> probe_server_;  // for health and metrics alone; none: server_ does
  Reloads reloads_;                           // after what it reloads
  std::atomic<double> drain_seconds_;
  std::atomic<double> last_bytes_seconds_;  // that clients have for them after the drain
  std::unique_ptr<StatusReport> status_;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace lockstep
