#include "server/daemon/load_report.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "engine/base/log.h"

namespace lockstep {

LoadReport::LoadReport(const Engine& engine)
    : thread_([&engine](const std::stop_token& stop) { run(engine, stop); }) {
  pthread_setname_np(thread_.native_handle(), "load-report");
}

void LoadReport::run(const Engine& engine, const std::stop_token& stop) {
  constexpr std::chrono::seconds kInterval{5};
  std::mutex mutex;
  std::condition_variable_any ended;
  std::unique_lock lock(mutex);
  while (!ended.wait_for(lock, stop, kInterval, [&] { return stop.stop_requested(); })) {
    const LoadProgress progress = engine.statistics().load;
    spdlog::info("loading: {} of {} MiB, {:.0f} MiB/s", progress.bytes_done >> 20U,
                 progress.bytes_total >> 20U, progress.bytes_per_second() / (1U << 20U));
  }
}

}  // namespace lockstep
