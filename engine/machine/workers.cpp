#include "engine/machine/workers.h"

#include <pthread.h>
#include <sched.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <system_error>

namespace lockstep {
namespace {

// About 20 microseconds: longer than a phase's imbalance, shorter than waking a thread costs.
constexpr uint32_t kSpins = 1000;

// Looking again makes no sense where another worker needs this processor to make progress.
uint32_t spins_for(std::span<const int> cpus) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  const std::set<int> distinct(cpus.begin(), cpus.end());
  const bool oversubscribed = cpus.size() > static_cast<size_t>(CPU_COUNT(&allowed)) ||
                              (distinct.size() < cpus.size() && !distinct.contains(-1));
  return oversubscribed ? 0 : kSpins;
}

}  // namespace

Workers::Workers(size_t count, uint32_t spins) : spins_(spins), barrier_(count, spins) {}

Result<std::unique_ptr<Workers>> Workers::start(std::span<const int> cpus) {
  std::unique_ptr<Workers> workers(new Workers(cpus.size(), spins_for(cpus)));
  for (size_t worker = 0; worker < cpus.size(); ++worker) {
    try {
      workers->threads_.emplace_back([pool = workers.get(), worker] { pool->work(worker); });
    } catch (const std::system_error& error) {
      return machine_refused(
          "cannot start worker thread {} of {}: {}; raise the limit on threads (ulimit -u, "
          "TasksMax) or lower --workers",
          worker, cpus.size(), error.what());
    }
    if (cpus[worker] < 0) continue;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(cpus[worker]), &set);
    const int failed =
        pthread_setaffinity_np(workers->threads_.back().native_handle(), sizeof set, &set);
    if (failed != 0) {
      return machine_refused("cannot pin worker {} to processor {}: {}", worker, cpus[worker],
                             std::strerror(failed));
    }
  }
  return workers;
}

Workers::~Workers() {
  job_ = nullptr;
  started_.set(++jobs_);
  for (std::thread& thread : threads_) thread.join();
}

void Workers::run(const std::function<void(size_t)>& job) {
  job_ = &job;
  started_.set(++jobs_);
  done_.wait_for(jobs_, 0);
}

void Workers::work(size_t worker) {
  for (uint32_t next = 1;; ++next) {
    started_.wait_for(next, spins_);
    if (job_ == nullptr) return;
    (*job_)(worker);
    barrier_.arrive_and_wait(worker);
    if (worker == 0) done_.set(next);
  }
}

}  // namespace lockstep
