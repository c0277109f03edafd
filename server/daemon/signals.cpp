#include "server/daemon/signals.h"

#include <pthread.h>

#include <utility>

namespace lockstep {
namespace {

// SIGUSR2 is how the object ends its own thread.
sigset_t watched_signals(Hangup hangup) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGUSR2}) sigaddset(&signals, number);
  if (hangup == Hangup::kReloads) sigaddset(&signals, SIGHUP);
  return signals;
}

}  // namespace

void block_signals(Hangup hangup) {
  sigset_t signals = watched_signals(hangup);
  sigaddset(&signals, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

SignalWatch::SignalWatch(SignalHandlers handlers)
    : handlers_(std::move(handlers)), thread_([this] {
        run(watched_signals(handlers_.on_reload ? Hangup::kReloads : Hangup::kEnds));
      }) {
  pthread_setname_np(thread_.native_handle(), "signals");
}

SignalWatch::~SignalWatch() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGUSR2);
  thread_.join();
}

void SignalWatch::wait() {
  const MutexLock lock(mutex_);
  while (!seen_) changed_.wait(mutex_);
}

void SignalWatch::stop_waiting() {
  {
    const MutexLock lock(mutex_);
    seen_ = true;
  }
  changed_.notify_all();
}

void SignalWatch::run(const sigset_t& signals) {
  while (true) {
    int number = 0;
    if (sigwait(&signals, &number) != 0) continue;
    bool first = false;
    {
      const MutexLock lock(mutex_);
      if (ending_) return;
      if (number == SIGUSR2) continue;
      if (number != SIGHUP) first = !std::exchange(seen_, true);
    }
    if (number == SIGHUP) {
      handlers_.on_reload();
      continue;
    }
    (first ? handlers_.on_stop : handlers_.on_stop_again)();
    changed_.notify_all();
  }
}

}  // namespace lockstep
