#include "server/daemon/daemon.h"

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "engine/base/log.h"
#include "server/api/routes.h"
#include "server/daemon/load_report.h"
#include "server/daemon/request_log.h"
#include "server/daemon/signals.h"
#include "server/ui/page.h"
#include "server/version.h"

namespace lockstep {
namespace {

std::vector<std::string> served_names(const Engine& engine, const Options& options) {
  if (!options.served_model_names.empty()) return options.served_model_names;
  return {engine.model().name};
}

void log_start(const ModelInfo& info, const Options& options) {
  spdlog::info("lockstepd {}: model {} ({}, {}, {:.1f} MiB, {} parameters)", kVersion, info.name,
               info.architecture, info.format, static_cast<double>(info.file_bytes) / 1048576,
               info.parameter_count);
  spdlog::info("{} ranks with {} workers in all, strategy {}", info.rank_count, info.worker_count,
               info.strategy);
  spdlog::info(
      "isa {}, arithmetic {}, kv format {}, context {} tokens, {} sequences, fingerprint {}",
      info.instruction_set, info.arithmetic, info.kv_format, info.context_tokens,
      options.engine.sequence_count, info.fingerprint);
}

}  // namespace

Daemon::Daemon(std::unique_ptr<Engine> engine, OptionValues values, OptionSources sources)
    : options_(to_options(values)),
      engine_(std::move(engine)),
      model_(*engine_, served_names(*engine_, options_), options_.choices_max,
             options_.engine.waiting_requests + options_.engine.sequence_count),
      metrics_(*engine_, model_.names().front(), options_.metrics_aliases),
      reloads_(std::move(sources), std::move(values)),
      drain_seconds_(options_.drain_seconds) {
  add_reloads();
}

Daemon::~Daemon() {
  metrics_.http().set_server(nullptr);
}

Result<void> Daemon::run() {
  SignalWatch watch({.on_stop = [this] { signal_to_stop(); },
                     .on_stop_again =
                         [] {
                           spdlog::warn("stopping at once");
                           std::_Exit(0);
                         },
                     .on_reload = [this] { reloads_.request(); }});
  if (auto started = start(); !started) return started;
  watch.wait();
  stop();
  return {};
}

// The order of the start: whoever asks can be told how far it is before what takes long begins.
Result<void> Daemon::start() {
  log_start(engine_->model(), options_);
  if (auto listening = listen(); !listening) return listening;
  reloads_.start();
  return load();
}

// The order of the end: health says no, running requests have their time, their last bytes go out.
void Daemon::stop() {
  model_.set_state(ServingState::kDraining);
  server_->stop_accepting();
  engine_->drain(drain_seconds_);
  wait_for_last_bytes();
  server_->stop();
  spdlog::info("stopped");
}

Result<void> Daemon::listen() {
  HttpOptions http = options_.http;
  http.error_body = http_error_body;
  http.on_finished = [this](const HttpRecord& record) {
    metrics_.http().observe(record);
    log_request(record, model_.take_note());
  };
  auto routes = make_routes(model_, options_.metrics ? &metrics_ : nullptr);
  if (options_.ui) add_page_routes(routes);
  metrics_.http().add_routes(routes);
  auto server = HttpServer::bind(std::move(http), std::move(routes));
  if (!server) return std::unexpected(server.error());
  server_ = std::move(*server);
  metrics_.http().set_server(server_.get());
  server_->start();
  const bool ipv6 = options_.http.host.find(':') != std::string::npos;
  spdlog::info("listening on http://{}{}{}:{}", ipv6 ? "[" : "", options_.http.host,
               ipv6 ? "]" : "", server_->port());
  return {};
}

Result<void> Daemon::load() {
  {
    const LoadReport report(*engine_);
    if (auto loaded = engine_->load(); !loaded) return loaded;
  }
  model_.set_state(ServingState::kReady);
  spdlog::info("ready after {:.2f} s", engine_->statistics().load.seconds);
  return {};
}

// What SIGHUP changes, in this order. Whoever owns a file that may change adds its line here.
void Daemon::add_reloads() {
  reloads_.add("options", [this](const Options& options) -> Result<Reloads::Commit> {
    return [this, level = options.log_level, drain_seconds = options.drain_seconds] {
      spdlog::set_level(spdlog::level::from_str(level));
      drain_seconds_ = drain_seconds;
    };
  });
}

// Nothing is lost by leaving in the middle of a load.
void Daemon::signal_to_stop() {
  spdlog::info("stopping: running requests have {} s", drain_seconds_.load());
  if (model_.state() == ServingState::kLoading) std::_Exit(0);
}

// Answers are complete now, but perhaps not yet with their clients; each connection closes when
// its answer has been taken.
void Daemon::wait_for_last_bytes() const {
  constexpr std::chrono::milliseconds kPause{5};
  const auto end = std::chrono::steady_clock::now() + options_.http.limits.write_deadline;
  while (server_->open_connections() > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace lockstep
