// Watches that the engine and the gate move. When one does not, the watchdog says so in steps,
// writes all stacks to standard error, and at last ends the process, so that the service manager
// starts it again. Where there is no memory for what it would say, it does the rest.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "engine/base/mutex.h"
#include "server/daemon/last_resort.h"
#include "server/daemon/log_format.h"
#include "server/daemon/stack_dump.h"
#include "server/daemon/stall_detector.h"

namespace lockstep {

// A part of the daemon, and how long ago it has finished a piece of its work, or has had none,
// in seconds.
struct Heartbeat {
  std::string_view whose;  // of static storage: "the engine"
  double age_seconds = 0;
};

struct WatchdogOptions {
  double stall_seconds = 30;
  LogFormat log_format = LogFormat::kLogfmt;
  // The oldest of all parts. Lock-free; takes no memory.
  std::function<Heartbeat()> heartbeat;
  // Tells what the engine is at, for the log.
  std::function<std::string()> describe;
  // Called at each stage that is new, and at each look while all is fine; must neither block nor
  // throw.
  std::function<void(StallStage)> on_stage;
  std::function<void()> on_fine;
};

class Watchdog {
 public:
  // Starts its thread. What the functions use outlives this.
  explicit Watchdog(WatchdogOptions options);
  ~Watchdog();

  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Any thread.
  void set_stall_seconds(double seconds) { stall_seconds_ = seconds; }
  // The process should have ended by itself so many seconds from now, those not counted in which it
  // is stopped; otherwise the watchdog ends it.
  void expect_end_within(double seconds);

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  // False once this ends.
  bool rest_for_a_tick() LOCKSTEP_REQUIRES(mutex_);
  void look();
  void enter(StallStage stage);
  void dump();
  [[noreturn]] void end(std::string_view what, std::string_view why);

  const WatchdogOptions options_;
  std::atomic<double> stall_seconds_;
  LastResort last_resort_;
  StackDump stacks_;
  StallDetector detector_;
  StallStage stage_ = StallStage::kFine;  // of its thread, as is the next
  std::string_view stalled_;              // what has not moved
  Mutex mutex_;
  ConditionVariable changed_;
  std::optional<double> end_seconds_left_ LOCKSTEP_GUARDED_BY(mutex_);
  bool ending_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lockstep
