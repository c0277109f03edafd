// The signals that end the daemon, on a thread of their own.
#pragma once

#include <condition_variable>
#include <csignal>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep {

// Blocks SIGTERM and SIGINT in this thread, and so in all that are started from it later, and
// ignores SIGPIPE. Before any other thread is started.
void block_signals();

// Waits for SIGTERM and SIGINT. The first one calls `on_first`; every later one calls `on_second`;
// both on the thread of this object. block_signals() comes first.
class SignalWatch {
 public:
  SignalWatch(std::function<void()> on_first, std::function<void()> on_second);
  ~SignalWatch();

  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Returns when the first signal has come.
  void wait();

 private:
  void run(const sigset_t& signals);

  std::function<void()> on_first_;
  std::function<void()> on_second_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool seen_ = false;    // guarded by mutex_
  bool ending_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace lockstep
