// stalling_daemon park|spin|lock|gate|fail|gpu, and LOCKSTEP_ variables for the options: the daemon
// as it is, but that SIGUSR1 makes its engine's thread hang inside of a pass: asleep, computing
// without end, or waiting for a mutex that nobody gives back; or makes the thread that owns all
// sockets hang; or makes passes fail; or loses the simulated GPU that it computes on. Nothing of
// this is in lockstepd.
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <string_view>
#include <thread>

#include "engine/base/log.h"
#include "engine/placement/machine.h"
#include "server/daemon/daemon.h"
#include "server/daemon/signals.h"
#include "tests/engine/machine/host_device.h"
#include "tests/engine/machine/simulated_gpus.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

std::mutex taken_mutex;
std::atomic<uint64_t> spins;
// That still succeed; negative: all.
std::atomic<int> passes_left = -1;
// From its next client on.
std::atomic<bool> gate_hangs = false;

// Each in a function of its own, to be found in the stacks.
__attribute__((noinline)) void hang_parked() {
  while (true) pause();
}
__attribute__((noinline)) void hang_spinning() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);  // tests beside it want to go on
  while (true) spins.fetch_add(1);
}
__attribute__((noinline)) void hang_at_a_lock() {
  taken_mutex.lock();
}

// An output's callback must not block: here one does.
void submit_hang(Engine& engine, std::string_view kind) {
  Request request;
  request.id = "hang";
  request.prompt = {1};
  request.max_tokens = 2;
  request.on_output = [kind](Output&&) {
    spdlog::info("the engine's thread will hang");
    if (kind == "park") hang_parked();
    if (kind == "spin") hang_spinning();
    hang_at_a_lock();
  };
  if (const auto id = engine.submit(std::move(request)); !id) {
    std::fprintf(stderr, "not submitted: %s\n", id.error().message.c_str());
  }
}

int run(std::string_view kind) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  block_signals(Hangup::kReloads);
  taken_mutex.lock();

  const OptionSources sources{.command_line = {}, .environment = process_environment(), .file = {}};
  auto values = resolve_options(sources);
  if (!values) return std::fprintf(stderr, "%s\n", values.error().message.c_str()), 2;
  Options options = to_options(*values);
  Machine machine = Machine::read(/*with_gpus=*/false);
  machine.before_pass = []() -> Result<void> {
    if (passes_left < 0 || passes_left.fetch_sub(1) > 0) return {};
    passes_left = 0;
    return machine_refused("gpu0 is lost");
  };
  if (kind == "gpu") {
    machine.topology.gpus = {simulated_gpu(0, -1)};
    machine.gpu_platform = &test_gpus();
  }
  DaemonLog log(options);
  auto engine = Engine::open(options.engine, machine);
  if (!engine) return std::fprintf(stderr, "%s\n", engine.error().message.c_str()), 2;
  const WaitingStatus waiting;
  Daemon daemon(std::move(*engine), *values, sources, log, waiting);
  std::thread([&] {
    int number = 0;
    sigwait(&signals, &number);
    if (kind == "gpu") {
      host_gpu(0).lose();
      spdlog::info("the GPU is lost");
    } else if (kind == "fail") {
      passes_left = 4;
      spdlog::info("four more passes will succeed");
    } else if (kind == "gate") {
      gate_hangs = true;
      spdlog::info("the gate will hang");
    } else {
      submit_hang(daemon.engine(), kind);
    }
  }).detach();
  return daemon.run() ? 0 : 1;
}

}  // namespace

// Instead of the C library's: what the gate calls in the middle of its turn.
extern "C" int accept4(int socket, sockaddr* address, socklen_t* size, int flags) {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  if (gate_hangs && std::string_view(name) == "gate") hang_parked();
  return static_cast<int>(syscall(SYS_accept4, socket, address, size, flags));
}

}  // namespace lockstep

int main(int count, char** arguments) {
  return lockstep::run(count > 1 ? arguments[1] : "park");
}
