#include "server/commands/signals.h"

#include <pthread.h>

#include <utility>

namespace lockstep {
namespace {

// SIGUSR2 is how the object ends its own thread.
sigset_t watched_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGUSR2);
  return signals;
}

}  // namespace

void block_signals() {
  const sigset_t signals = watched_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

SignalWatch::SignalWatch(std::function<void()> on_first, std::function<void()> on_second)
    : on_first_(std::move(on_first)),
      on_second_(std::move(on_second)),
      thread_([this] { run(watched_signals()); }) {}

SignalWatch::~SignalWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGUSR2);
  thread_.join();
}

void SignalWatch::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return seen_; });
}

void SignalWatch::run(const sigset_t& signals) {
  while (true) {
    int number = 0;
    if (sigwait(&signals, &number) != 0) continue;
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      if (ending_) return;
      if (number == SIGUSR2) continue;
      first = !std::exchange(seen_, true);
    }
    (first ? on_first_ : on_second_)();
    changed_.notify_all();
  }
}

}  // namespace lockstep
