#include "server/daemon/daemon.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "engine/base/log.h"
#include "server/api/routes.h"
#include "server/daemon/daemon_metrics.h"
#include "server/daemon/exposure.h"
#include "server/daemon/signals.h"
#include "server/http/browser_rules.h"
#include "server/options/version.h"
#include "server/ui/page.h"

namespace lockstep {
namespace {

// Beside the drain and the last bytes: to cancel, to join threads, to give memory back.
constexpr double kEndSeconds = 30;

// The process of an engine that has failed ends within the first. Its clients have the second for
// their last bytes.
constexpr double kFailedEndSeconds = 10;
constexpr double kFailedLastBytesSeconds = 4;

double seconds_of(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

EngineHealth health_of(StallStage stage) {
  switch (stage) {
    case StallStage::kFine:
      return EngineHealth::kFine;
    case StallStage::kLate:
      return EngineHealth::kLate;
    case StallStage::kStalled:
    case StallStage::kDead:
      return EngineHealth::kStalled;
  }
  return EngineHealth::kStalled;
}

AllowedHosts allowed_hosts(const Options& options) {
  std::vector<std::string> names = options.allowed_hosts;
  names.insert(names.end(), {options.http.host, options.probe_host});
  return AllowedHosts(names);
}

RequestLimits limits_of(const Engine& engine, const Options& options) {
  RequestLimits limits = request_limits(engine.model(), options.engine);
  limits.choices_max = options.choices_max;
  limits.request_seconds = options.request_seconds;
  limits.answer_bytes_max = options.answer_bytes_max;
  return limits;
}

void log_start(const ModelInfo& info, const Options& options) {
  spdlog::info("lockstepd {}: model {} ({}, {}, {:.1f} MiB, {} parameters)", kVersion, info.name,
               info.architecture, info.format, static_cast<double>(info.file_bytes) / 1048576,
               info.parameter_count);
  spdlog::info("{} ranks with {} workers in all, strategy {}", info.rank_count, info.worker_count,
               info.strategy);
  spdlog::info(
      "devices {}, isa {}, arithmetic {}, kv format {}, context {} tokens, {} sequences, "
      "fingerprint {}",
      info.devices, info.instruction_set, info.arithmetic, info.kv_format, info.context_tokens,
      options.engine.sequence_count, info.fingerprint);
}

}  // namespace

Daemon::Daemon(std::unique_ptr<Engine> engine, OptionValues values, OptionSources sources,
               DaemonLog& log, const WaitingStatus& waiting)
    : options_(to_options(values)),
      log_(log),
      waiting_(waiting),
      engine_(std::move(engine)),
      model_(*engine_, options_.served_model_names, limits_of(*engine_, options_),
             options_.engine.cache_directory),
      metrics_(*engine_, model_.names().front(), options_.metrics_aliases),
      notifier_(process_environment()),
      store_(notifier_, process_environment()),
      gate_limits_(options_.http.limits, !options_.probe_host.empty()),
      reloads_(std::move(sources), std::move(values)),
      drain_seconds_(options_.drain_seconds),
      last_bytes_seconds_(seconds_of(options_.http.limits.write_deadline)) {
  model_.set_logs_prompts(options_.log_prompts);
  metrics_.add_source(
      [this] { return daemon_families(log_.dropped(), reloads_.outcome(), publisher_.get()); });
  add_reloads();
}

Daemon::~Daemon() {
  for (HttpServer* const server : servers()) server->stop();  // its threads use what goes first
  reloads_.stop();
  metrics_.http().clear_servers();
}

Result<void> Daemon::run() {
  SignalWatch watch({.on_stop = [this] { signal_to_stop(); },
                     .on_stop_again =
                         [this] {
                           spdlog::warn("stopping at once");
                           leave(engine_->failure() ? 1 : 0);
                         },
                     .on_reload = [this] { reloads_.request(); }});
  engine_->set_failure_handler([this, &watch](const Error&) {
    model_.set_health(EngineHealth::kFailed);
    watch.stop_waiting();
  });
  if (auto started = start(); !started) {
    notifier_.status(started.error().message);
    return started;
  }
  watch.wait();
  if (engine_->failure()) stop_failed();
  stop();
  return {};
}

// Clients can be told how far it is before what takes long begins: hence this order.
Result<void> Daemon::start() {
  log_start(engine_->model(), options_);
  if (auto publishing = publish_cache(); !publishing) return publishing;
  if (auto listening = listen(); !listening) return listening;
  status_ = std::make_unique<StatusReport>(model_, notifier_, waiting_);
  watch_engine();
  start_reloads();
  if (auto loaded = load(); !loaded) return loaded;
  notifier_.ready(status_->text());
  return {};
}

// The order of the end: health says no (since the signal came) while new requests are still told
// so, running ones have their time, their last bytes go out. The watchdog sees to it that it ends.
void Daemon::stop() {
  watchdog_->expect_end_within(drain_seconds_ + kEndSeconds + last_bytes_seconds_);
  server_->close_after_answers();
  engine_->drain(drain_seconds_);
  if (engine_->failure()) stop_failed();
  server_->stop_accepting();
  wait_for_last_bytes();
  for (HttpServer* const server : servers()) server->stop();
  spdlog::info("stopped");
}

// Nothing that the engine holds is given back: that would wait for a device that does not answer.
void Daemon::stop_failed() {
  const Error failure = *engine_->failure();
  model_.set_state(ServingState::kDraining);
  watchdog_->expect_end_within(kFailedEndSeconds);
  log_surely([&] {
    notifier_.stopping("Failed: " + failure.message,
                       std::chrono::seconds(static_cast<int64_t>(kFailedEndSeconds)));
  });
  last_bytes_seconds_ = std::min(last_bytes_seconds_.load(), kFailedLastBytesSeconds);
  server_->close_after_answers();
  engine_->drain(kFailedLastBytesSeconds);  // all of them are being told
  server_->stop_accepting();
  wait_for_last_bytes();
  spdlog::critical("the engine has failed, and the daemon ends: {}", failure.message);
  leave(exit_code({ErrorKind::kMachineRefused, failure.message}));
}

Result<void> Daemon::listen() {
  const bool has_probe_socket = !options_.probe_host.empty();
  auto access = Access::open(options_.api_keys, options_.metrics_without_key && !has_probe_socket);
  if (!access) return std::unexpected(access.error());
  access_ = std::move(*access);
  HttpOptions http = options_.http;
  http.environment = process_environment();
  if (access_->is_on()) {
    model_.set_key_limits(&access_->limits());
    http.authorize = [this](const HttpHead& head) {
      return access_->authorize(head, std::chrono::steady_clock::now());
    };
  } else {
    http.authorize = [hosts = allowed_hosts(options_)](const HttpHead& head) {
      return hosts.authorize(head);
    };
  }
  http.error_body = http_error_body;
  http.on_finished = [this](const HttpRecord& record) {
    metrics_.http().observe(record);
    log_.log_request(record);
  };
  auto routes = make_routes(model_, options_.metrics ? &metrics_ : nullptr);
  std::vector<HttpRoute> probes;
  std::ranges::copy_if(routes, std::back_inserter(probes), &HttpRoute::always);
  if (options_.ui) add_page_routes(routes);
  metrics_.http().add_routes(routes);
  const GateLimits::Both limits = gate_limits_.now(0);
  http.limits = limits.all;
  auto server = HttpServer::bind(http, routes);
  if (!server) return std::unexpected(server.error());
  server_ = std::move(*server);
  http.limits = limits.probes;
  if (auto listening = listen_for_probes(http, std::move(probes)); !listening) return listening;
  for (HttpServer* const one : servers()) {
    metrics_.http().add_server(*one);
    one->start();
  }
  log_listeners();
  return {};
}

void Daemon::log_listeners() const {
  const std::vector<std::string> addresses = server_->addresses();
  for (const std::string& address : addresses) spdlog::info("listening on {}", address);
  for (const std::string& warning : exposure_warnings(addresses, access_->is_on())) {
    spdlog::warn("{}", warning);
  }
  if (probe_server_ == nullptr) return;
  const std::vector<std::string> probes = probe_server_->addresses();
  spdlog::info("health and metrics on {}", probes.front());
  const bool metrics_ask = access_->is_on() && !options_.metrics_without_key;
  for (const std::string& note : probe_exposure_notes(probes, metrics_ask)) {
    spdlog::info("{}", note);
  }
}

// A socket, a gate, threads and descriptors of their own: no crowd at the other stands in the way
// of a probe. `http`: as for the other, but for its limits. Metrics that need no key are read here
// alone.
Result<void> Daemon::listen_for_probes(const HttpOptions& http, std::vector<HttpRoute> probes) {
  if (options_.probe_host.empty()) return {};
  for (HttpRoute& route : probes) route.without_key |= options_.metrics_without_key;
  HttpOptions own = http;
  own.host = options_.probe_host;
  own.port = options_.probe_port;
  own.host_option = "--probe-host";
  own.takes_passed_sockets = false;
  own.gate_name = "probe-gate";
  auto server = HttpServer::bind(std::move(own), std::move(probes));
  if (!server) return std::unexpected(server.error());
  probe_server_ = std::move(*server);
  return {};
}

std::vector<HttpServer*> Daemon::servers() const {
  std::vector<HttpServer*> servers;
  for (const auto& server : {server_.get(), probe_server_.get()}) {
    if (server != nullptr) servers.push_back(server);
  }
  return servers;
}

// Before the first scrape asks for its counters.
Result<void> Daemon::publish_cache() {
  if (options_.kv_events.empty()) return {};
  auto socket = bind_event_socket(options_.kv_events);
  if (!socket) return std::unexpected(socket.error());
  const std::string topic = kv_topic(options_.kv_events_pod, model_.names().front());
  const std::string endpoint = (*socket)->endpoint();
  publisher_ =
      std::make_unique<CachePublisher>(std::move(*socket), topic, engine_->model().kv_page_tokens);
  engine_->publish_cache_events(publisher_->events());
  spdlog::info("KV events on {}, topic {}", endpoint, topic);
  for (const std::string& warning : event_exposure_warnings(endpoint)) spdlog::warn("{}", warning);
  return {};
}

Result<void> Daemon::load() {
  if (auto loaded = engine_->load(); !loaded) return loaded;
  gate_limits_.apply(*server_, probe_server_.get());  // what the engine has opened stays open
  // Before anybody hears that it is ready: from then on it may be killed and be back at once.
  store_.replace(engine_->memory_to_keep());
  model_.set_state(ServingState::kReady);
  spdlog::info("ready after {:.2f} s", engine_->statistics().load.seconds);
  return {};
}

// Adds all that SIGHUP changes, in this order: a line for each owner of a file that may change.
void Daemon::add_reloads() {
  reloads_.add("API keys", [this](const Options&) { return access_->prepare_reload(); });
  reloads_.add("certificate", [this](const Options&) { return server_->prepare_tls(); });
  reloads_.add("certificate for probes", [this](const Options&) -> Result<Reloads::Commit> {
    if (probe_server_ == nullptr) return [] {};
    return probe_server_->prepare_tls();
  });
  reloads_.add("options", [this](const Options& options) -> Result<Reloads::Commit> {
    return [this, options, limits = limits_of(*engine_, options)] {
      gate_limits_.want(options.http.limits, *server_, probe_server_.get());
      model_.set_limits(limits);
      engine_->set_waiting_limits(options.engine.waiting_requests,
                                  options.engine.waiting_prompt_tokens);
      last_bytes_seconds_ = seconds_of(options.http.limits.write_deadline);
      log_.set_level(options.log_level);
      model_.set_logs_prompts(options.log_prompts);
      drain_seconds_ = options.drain_seconds;
      watchdog_->set_stall_seconds(options.stall_seconds);
    };
  });
}

void Daemon::start_reloads() {
  // While loading or ending, the service manager knows better than to hear of "ready".
  auto told = std::make_shared<bool>(false);
  reloads_.start(
      [this, told] {
        *told = model_.state() == ServingState::kReady;
        if (*told) notifier_.reloading();
      },
      [this, told] {
        if (*told && model_.state() == ServingState::kReady) notifier_.ready(status_->text());
      });
}

void Daemon::watch_engine() {
  watchdog_ = std::make_unique<Watchdog>(
      WatchdogOptions{.stall_seconds = options_.stall_seconds,
                      .log_format = log_.format(),
                      .heartbeat = [this] { return heartbeat(); },
                      .describe = [this] { return engine_->describe_batch(); },
                      .on_stage = [this](StallStage stage) { model_.set_health(health_of(stage)); },
                      .on_fine =
                          [this] {
                            notifier_.feed_watchdog();
                            log_.tell_left_out();
                          }});
}

// The heartbeat of the engine or of a gate, whichever is the older.
Heartbeat Daemon::heartbeat() const {
  const Heartbeat heartbeats[] = {
      {"the engine", engine_->heartbeat_age_seconds()},
      {"the gate", server_->turn_seconds()},
      {"the gate for probes", probe_server_ == nullptr ? 0 : probe_server_->turn_seconds()}};
  return std::ranges::max(heartbeats, {}, &Heartbeat::age_seconds);
}

// On the signals' thread: from here on no request is taken.
void Daemon::signal_to_stop() {
  const double seconds = drain_seconds_;
  spdlog::info("stopping: running requests have {} s", seconds);
  // Nothing is lost by leaving in the middle of a load.
  if (model_.state() == ServingState::kLoading) leave(0);
  model_.set_state(ServingState::kDraining);
  log_surely([&] {
    notifier_.stopping("Draining",
                       std::chrono::seconds(static_cast<int64_t>(seconds + kEndSeconds)));
  });
}

// Answers are complete now, but perhaps not yet with their clients; each connection closes when
// its answer has been taken.
void Daemon::wait_for_last_bytes() const {
  constexpr std::chrono::milliseconds kPause{5};
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::milliseconds(static_cast<int64_t>(last_bytes_seconds_ * 1000));
  while (server_->open_connections() > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace lockstep
