// lockstepd serve: loads the model and answers HTTP until SIGTERM or SIGINT.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <utility>

#include "server/commands/command_line.h"
#include "server/commands/commands.h"
#include "server/daemon/daemon.h"
#include "server/daemon/event_socket.h"
#include "server/daemon/memory_store.h"
#include "server/daemon/service_notifier.h"
#include "server/daemon/signals.h"
#include "server/daemon/status_report.h"
#include "server/daemon/waiting_status.h"

namespace lockstep {
namespace {

// glibc gives each new thread an arena of its own, up to 8 per processor, and an arena keeps the
// most that any request has needed in it: memory would grow for as long as threads come and go.
// Most of what a thread takes comes from its own cache; for the rest a few arenas do.
void share_arenas() {
  constexpr int kArenas = 4;
  ::mallopt(M_ARENA_MAX, kArenas);
  // Bodies and answers go back to the system when they are freed. By itself glibc raises this to
  // the largest that was ever freed, and keeps them between what is small and stays.
  constexpr int kOwnMappingBytes = 256 << 10;
  ::mallopt(M_MMAP_THRESHOLD, kOwnMappingBytes);
}

// Other hosts may be long in coming: the service manager hears whom this one waits for, and is
// asked for more time. From then on that is the daemon's to tell.
Result<std::unique_ptr<Engine>> open_until_stopped(const Options& options,
                                                   std::vector<KeptDescriptor> kept,
                                                   WaitingStatus& waiting,
                                                   std::atomic<bool>& stopped) {
  const auto notifier = std::make_shared<const ServiceNotifier>(process_environment());
  const auto is_open = std::make_shared<std::atomic<bool>>(false);
  const auto on_waiting = [&waiting, notifier, is_open](const std::string& whom) {
    waiting.tell(whom);
    if (!*is_open && !whom.empty()) notifier->loading(waiting.text(), StatusReport::kMoreTime);
  };
  const SignalWatch watch({.on_stop = [&] { stopped = true; },
                           .on_stop_again = [] { std::_Exit(0); },
                           .on_reload = [] {}});
  auto engine = open_engine(options, std::move(kept), &stopped, on_waiting);
  *is_open = true;
  return engine;
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
      "lockstepd plan, lockstepd inspect, lockstepd check-health; each has --help.\n"
      "Exit codes: 0; 1 for what the machine refuses; 2 for what was given.");
  const auto values = line.parse(arguments);
  if (!values) return values.error();
  Options options = to_options(*values);
  if (print) {
    std::cout << print_options(*values) << '\n';
    return 0;
  }
  if (!options.kv_events.empty()) {
    if (const auto given = check_event_endpoint(options.kv_events); !given) {
      return report(given.error());
    }
  }
  if (check) {
    start_log(options);
    if (!options.engine.model.empty()) {
      if (const auto good = check_engine(options); !good) return report(good.error());
    }
    std::cout << "the configuration is good\n";
    return 0;
  }
  share_arenas();
  block_signals(Hangup::kReloads);
  DaemonLog log(options);
  const EnvironmentVariables environment = process_environment();
  options.engine.keep_memory = choose_memory_keeping(options.keep_weights, environment);
  std::atomic<bool> stopped = false;
  WaitingStatus waiting;
  auto engine = open_until_stopped(options, take_kept_memory(environment), waiting, stopped);
  if (stopped) return 0;
  if (!engine) return report(engine.error());
  Daemon daemon(std::move(*engine), *values, line.sources(), log, waiting);
  const auto served = daemon.run();
  return served ? 0 : report(served.error());
}

}  // namespace lockstep
