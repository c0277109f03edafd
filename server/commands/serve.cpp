// lockstepd serve: loads the model and answers HTTP until SIGTERM or SIGINT.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/base/log.h"
#include "server/api/routes.h"
#include "server/commands/command_line.h"
#include "server/commands/commands.h"
#include "server/commands/signals.h"
#include "server/version.h"

namespace lockstep {
namespace {

// A path from a client as the log can hold it: one line of printable ASCII.
std::string loggable(std::string_view text) {
  std::string result(text.substr(0, 200));
  for (char& letter : result) {
    if (letter < 0x20 || letter > 0x7e) letter = '?';
  }
  return result;
}

void log_request(const HttpRecord& record, const std::optional<GenerationNote>& note) {
  // Probes and scrapes come every few seconds.
  const bool routine = record.route.starts_with("/health") || record.route == "/metrics";
  const auto level = routine ? spdlog::level::debug : spdlog::level::info;
  std::string generated;
  if (note) {
    generated = fmt::format(", {} prompt and {} generated tokens, finish {}", note->prompt_tokens,
                            note->generated_tokens, note->finish);
  }
  spdlog::log(level, "request {}: {} {} {}{}{}, {:.3f} s", loggable(record.request_id),
              loggable(record.method), loggable(record.path), record.status, generated,
              record.client_gone ? ", client left" : "", record.seconds);
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

// What a running daemon consists of, in the order in which it is made.
class Daemon {
 public:
  Daemon(std::unique_ptr<Engine> engine, Options options)
      : options_(std::move(options)),
        engine_(std::move(engine)),
        model_(*engine_, names(*engine_, options_), options_.choices_max,
               options_.engine.waiting_requests + options_.engine.sequence_count,
               options_.request_seconds),
        metrics_(*engine_, model_.names().front()) {}

  ~Daemon() { metrics_.http().set_server(nullptr); }

  Result<void> listen() {
    HttpOptions http = options_.http;
    http.error_body = http_error_body;
    http.on_finished = [this](const HttpRecord& record) {
      metrics_.http().observe(record);
      log_request(record, model_.take_note());
    };
    auto routes = make_routes(model_, options_.metrics ? &metrics_ : nullptr);
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

  Result<void> load() {
    {
      const std::jthread progress([this](const std::stop_token& stop) { log_progress(stop); });
      if (auto loaded = engine_->load(); !loaded) return loaded;
    }
    model_.set_state(ServingState::kReady);
    spdlog::info("ready after {:.2f} s", engine_->statistics().load.seconds);
    return {};
  }

  void stop() {
    model_.set_state(ServingState::kDraining);
    server_->stop_accepting();
    engine_->drain(options_.drain_seconds);
    wait_for_last_bytes();
    server_->stop();
    spdlog::info("stopped");
  }

 private:
  static std::vector<std::string> names(const Engine& engine, const Options& options) {
    if (!options.served_model_names.empty()) return options.served_model_names;
    return {engine.model().name};
  }

  // A line every few seconds, for whoever waits for a large model.
  void log_progress(const std::stop_token& stop) const {
    constexpr std::chrono::seconds kInterval{5};
    std::mutex mutex;
    std::condition_variable_any ended;
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, stop, kInterval, [&] { return stop.stop_requested(); })) {
      const LoadProgress progress = engine_->statistics().load;
      spdlog::info("loading: {} of {} MiB, {:.0f} MiB/s", progress.bytes_done >> 20U,
                   progress.bytes_total >> 20U, progress.bytes_per_second() / (1U << 20U));
    }
  }

  // Answers are complete now, but perhaps not yet with their clients; each connection closes when
  // its answer has been taken.
  void wait_for_last_bytes() const {
    constexpr std::chrono::milliseconds kPause{5};
    const auto end = std::chrono::steady_clock::now() + options_.http.limits.write_deadline;
    while (server_->open_connections() > 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(kPause);
    }
  }

  Options options_;
  std::unique_ptr<Engine> engine_;
  ServedModel model_;
  Metrics metrics_;
  std::unique_ptr<HttpServer> server_;
};

int serve(const Options& options) {
  block_signals();
  auto engine = open_engine(options);
  if (!engine) return report(engine.error());
  log_start((*engine)->model(), options);
  Daemon daemon(std::move(*engine), options);
  if (const auto listening = daemon.listen(); !listening) return report(listening.error());

  // Nothing is lost by leaving in the middle of a load, and at the second signal no one wants to
  // wait: both leave without unwinding.
  std::atomic<bool> loading = true;
  SignalWatch watch(
      [&] {
        spdlog::info("stopping: running requests have {} s", options.drain_seconds);
        if (loading) std::_Exit(0);
      },
      [] {
        spdlog::warn("stopping at once");
        std::_Exit(0);
      });
  const auto loaded = daemon.load();
  loading = false;
  if (!loaded) return report(loaded.error());
  watch.wait();
  daemon.stop();
  return 0;
}

}  // namespace

int run_serve(const std::vector<std::string>& arguments) {
  CommandLine line("serve",
                   "Keeps one model in memory and answers requests over HTTP in OpenAI's shapes.",
                   kServe);
  bool check = false;
  bool print = false;
  line.app().add_flag("--check-config", check,
                      "Check the options, and the model file if one is given, and end");
  line.app().add_flag("--print-config", print,
                      "Print the effective options and where each came from, as JSON, and end");
  line.app().footer(
      "Other commands: lockstepd generate, lockstepd bench, lockstepd bench-machine, "
      "lockstepd plan, lockstepd inspect; each has --help.\n"
      "Exit codes: 0; 1 for what the machine refuses; 2 for what was given.");
  const auto values = line.parse(arguments);
  if (!values) return values.error();
  const Options options = to_options(*values);
  if (print) {
    std::cout << print_options(*values) << '\n';
    return 0;
  }
  start_log(options);
  if (check) {
    if (!options.engine.model.empty()) {
      if (const auto engine = open_engine(options); !engine) return report(engine.error());
    }
    std::cout << "the configuration is good\n";
    return 0;
  }
  return serve(options);
}

}  // namespace lockstep
