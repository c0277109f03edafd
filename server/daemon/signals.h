// The signals that end a program or make it read its configuration again, on a thread of their own.
#pragma once

#include <csignal>
#include <functional>
#include <thread>

#include "engine/base/mutex.h"

namespace lockstep {

enum class Hangup {
  kEnds,     // SIGHUP does what it does by default (or what nohup asked for)
  kReloads,  // it is watched
};

// Blocks SIGTERM and SIGINT (and SIGHUP), and SIGALRM, which is the watchdog's, in this thread, and
// so in all that are started from it later, and ignores SIGPIPE. Before any other thread is
// started.
void block_signals(Hangup hangup);

// Called for signals, on the thread of the SignalWatch. None may block: a signal that
// comes meanwhile would wait.
struct SignalHandlers {
  std::function<void()> on_stop;         // the first SIGTERM or SIGINT
  std::function<void()> on_stop_again;   // every later one
  std::function<void()> on_reload = {};  // SIGHUP; none unless signals were blocked for it
};

// Waits for what block_signals() has blocked, which comes first.
class SignalWatch {
 public:
  explicit SignalWatch(SignalHandlers handlers);
  ~SignalWatch();

  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Returns when the first signal to end has come, or at stop_waiting().
  void wait();
  // Any thread. A signal that comes after it is a later one.
  void stop_waiting();

 private:
  void run(const sigset_t& signals);

  SignalHandlers handlers_;
  Mutex mutex_;
  ConditionVariable changed_;
  bool seen_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool ending_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lockstep
