#include "server/daemon/watchdog.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "engine/base/log.h"

namespace lockstep {
namespace {

constexpr double kTickSeconds = 0.25;
// After the watchdog should have ended the process, the kernel does.
constexpr unsigned kAlarmSeconds = 5;

double seconds_of(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

// SIGABRT's way, so that there is a core dump where the operator wants one. Takes no lock.
[[noreturn]] void abort_now() {
  signal(SIGABRT, SIG_DFL);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGABRT);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  raise(SIGABRT);
  _exit(1);
}

}  // namespace

Watchdog::Watchdog(WatchdogOptions options)
    : options_(std::move(options)),
      stall_seconds_(options_.stall_seconds),
      detector_(kTickSeconds) {
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "watchdog");
}

Watchdog::~Watchdog() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  // The kernel watches that the rest of an end comes in time.
  LastResort::unblock();
  if (end_seconds_left_) {
    last_resort_.end_after(static_cast<unsigned>(std::ceil(std::max(0.0, *end_seconds_left_))));
  } else {
    last_resort_.never();
  }
}

void Watchdog::expect_end_within(double seconds) {
  const MutexLock lock(mutex_);
  end_seconds_left_ = seconds;
}

void Watchdog::run() {
  LastResort::unblock();
  double last = seconds_of(Clock::now());
  MutexLock lock(mutex_);
  while (rest_for_a_tick()) {
    const double now = seconds_of(Clock::now());
    // Time in which the whole process was stopped does not count.
    const double passed = std::min(now - std::exchange(last, now), 2 * kTickSeconds);
    if (end_seconds_left_) *end_seconds_left_ -= passed;
    const bool overdue = end_seconds_left_ && *end_seconds_left_ <= 0;
    lock.unlock();
    if (overdue) {
      last_resort_.end_after(2 * kAlarmSeconds);
      dump();
      end("the daemon", " did not end in time");
    }
    look();
    lock.lock();
  }
}

bool Watchdog::rest_for_a_tick() {
  const auto deadline = ConditionVariable::deadline_in(std::chrono::duration<double>(kTickSeconds));
  while (!ending_ && changed_.wait_until(mutex_, deadline)) {
  }
  return !ending_;
}

void Watchdog::look() {
  const Heartbeat heartbeat = options_.heartbeat();
  const StallStage now =
      detector_.observe(seconds_of(Clock::now()), heartbeat.age_seconds, stall_seconds_);
  if (now != StallStage::kFine) stalled_ = heartbeat.whose;
  if (now != stage_) enter(now);
  if (now == StallStage::kFine) options_.on_fine();
}

void Watchdog::enter(StallStage stage) {
  const StallStage before = std::exchange(stage_, stage);
  options_.on_stage(stage);
  const double stalled = detector_.stalled_seconds();
  if (stage == StallStage::kFine) {
    last_resort_.never();
    log_surely([&] { spdlog::warn("{} moves again", stalled_); });
    return;
  }
  if (before == StallStage::kFine) {
    // Should anything below hang, the kernel ends the process.
    const double left = std::max(0.0, dead_seconds(stall_seconds_) - stalled);
    last_resort_.end_after(kAlarmSeconds + static_cast<unsigned>(std::ceil(left)));
    log_surely([&] {
      spdlog::error("{} has not moved for {:.1f} s, not ready until it does: {}", stalled_, stalled,
                    options_.describe());
    });
  }
  if (stage >= StallStage::kStalled && before < StallStage::kStalled) dump();
  if (stage == StallStage::kDead) end(stalled_, " does not move any more");
}

void Watchdog::dump() {
  log_surely([&] { stacks_.write(STDERR_FILENO, log_frame(options_.log_format, "error")); });
}

void Watchdog::end(std::string_view what, std::string_view why) {
  last_resort_.end_after(kAlarmSeconds);
  log_surely([&] {
    write_line(STDERR_FILENO, log_frame(options_.log_format, "critical"),
               {what, why, ": the watchdog ends the process"});
  });
  abort_now();
}

}  // namespace lockstep
