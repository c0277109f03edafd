#include "server/daemon/status_report.h"

#include <pthread.h>

#include <chrono>
#include <new>
#include <stop_token>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/mutex.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kInterval{1};
constexpr int kIntervalsPerLogLine = 5;
// A load that makes no progress for so long is left to the service manager's time limit. Taking
// hundreds of GiB of memory before the first byte is read takes minutes.
constexpr std::chrono::seconds kLoadPatience{600};

std::string load_text(const LoadProgress& progress) {
  if (progress.bytes_total == 0) return "Taking memory to load the model";
  const double ratio =
      static_cast<double>(progress.bytes_done) / static_cast<double>(progress.bytes_total);
  return fmt::format("Loading the model: {:.0f} %, {:.1f} GiB/s", 100 * ratio,
                     progress.bytes_per_second() / (1U << 30U));
}

void log_progress(const LoadProgress& progress) {
  if (progress.bytes_total == 0) {
    spdlog::info("loading: taking memory, nothing is read yet");
    return;
  }
  spdlog::info("loading: {} of {} MiB, {:.0f} MiB/s", progress.bytes_done >> 20U,
               progress.bytes_total >> 20U, progress.bytes_per_second() / (1U << 20U));
}

// The time between two looks, which a stop cuts short.
class Interval {
 public:
  explicit Interval(const std::stop_token& stop) : stop_(stop), on_stop_(stop, Wake{*this}) {}

  // Waits for it; false if it was cut short.
  bool passes() {
    const auto deadline = ConditionVariable::deadline_in(kInterval);
    const MutexLock lock(mutex_);
    while (!stop_.stop_requested() && stopped_.wait_until(mutex_, deadline)) {
    }
    return !stop_.stop_requested();
  }

 private:
  struct Wake {
    Interval& interval;
    // With the lock, so that it does not fall between a look at the token and the wait.
    void operator()() const {
      const MutexLock lock(interval.mutex_);
      interval.stopped_.notify_all();
    }
  };

  const std::stop_token stop_;
  Mutex mutex_;  // guards no member: the token guards itself
  ConditionVariable stopped_;
  std::stop_callback<Wake> on_stop_;  // last: it uses the above
};

}  // namespace

StatusReport::StatusReport(const ServedModel& model, const ServiceNotifier& notifier,
                           const WaitingStatus& waiting)
    : model_(model),
      notifier_(notifier),
      waiting_(waiting),
      thread_([this](const std::stop_token& stop) { run(stop); }) {
  pthread_setname_np(thread_.native_handle(), "status");
  notifier.loading(text(), kMoreTime);
}

std::string StatusReport::text() const {
  const EngineStatistics statistics = model_.engine().statistics();
  const bool is_loading = model_.state() == ServingState::kLoading;
  if (is_loading || !statistics.hosts.together) {
    std::string waits = waiting_.text();
    if (!waits.empty()) return waits;
  }
  if (is_loading) return load_text(statistics.load);
  const char* doing = model_.state() == ServingState::kDraining ? "Draining" : "Serving";
  if (model_.health() != EngineHealth::kFine) doing = "Stalled";
  if (model_.engine().output_is_damaged()) doing = "Giving no usable output:";
  if (model_.health() == EngineHealth::kFailed) doing = "Failed";
  return fmt::format("{} {}: {} requests running, {} waiting", doing, model_.names().front(),
                     statistics.requests_running, statistics.requests_waiting);
}

void StatusReport::run(const std::stop_token& stop) const {
  Interval interval(stop);
  Told told;
  while (interval.passes()) {
    try {
      look(told);
    } catch (const std::bad_alloc&) {
      told.text.clear();  // the next look tells it
    }
  }
}

void StatusReport::look(Told& told) const {
  std::string now = text();
  if (model_.state() != ServingState::kLoading) {
    if (now != told.text) notifier_.status(now);
  } else {
    const LoadProgress progress = model_.engine().statistics().load;
    if (progress.bytes_done != told.bytes) told.progressed = std::chrono::steady_clock::now();
    told.bytes = progress.bytes_done;
    // Other hosts may take longer than this one.
    const bool moves = std::chrono::steady_clock::now() - told.progressed < kLoadPatience ||
                       !waiting_.text().empty();
    if (moves) notifier_.loading(now, kMoreTime);
    if (++told.looks % kIntervalsPerLogLine == 0) log_progress(progress);
  }
  told.text = std::move(now);
}

}  // namespace lockstep
