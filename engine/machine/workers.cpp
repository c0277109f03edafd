#include "engine/machine/workers.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <system_error>

namespace lockstep {
namespace {

// A pause takes 10 to 50 nanoseconds. In a job the others are at work and will come: half a
// millisecond or more is longer than the workers' imbalance in a phase, even where the system takes
// a processor away for a moment, so that a pass has no sleeps. Where a look takes longer than a
// pause (a sanitizer's), fewer are as long.
constexpr uint32_t kBarrierSpins = 20000 / LOCKSTEP_PAUSES_PER_LOOK;

// Threads that are not pinned may share a processor until the system moves one of them.
constexpr uint32_t kUnpinnedSpins = 2000;

// Between jobs nobody knows when the next one comes: a moment, as long as waking a thread costs.
constexpr uint32_t kStartSpins = 1000;

// Looking again makes no sense where another worker needs this processor to make progress.
uint32_t spins_for(std::span<const int> cpus) {
  const std::set<int> distinct(cpus.begin(), cpus.end());
  const bool oversubscribed = cpus.size() > std::thread::hardware_concurrency() ||
                              (distinct.size() < cpus.size() && !distinct.contains(-1));
  if (oversubscribed) return 0;
  return distinct.contains(-1) ? kUnpinnedSpins : kBarrierSpins;
}

// Machines have more processors than a plain cpu_set_t can name. Returns an error number, or 0.
int pin(pthread_t thread, std::span<const int> cpus) {
  const int count = *std::ranges::max_element(cpus) + 1;
  cpu_set_t* set = CPU_ALLOC(count);
  if (set == nullptr) return ENOMEM;
  const size_t bytes = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  const int failed = pthread_setaffinity_np(thread, bytes, set);
  CPU_FREE(set);
  return failed;
}

}  // namespace

Workers::Workers(size_t count, uint32_t spins, int node, std::span<const int> caches)
    : spins_(spins),
      barrier_(count, spins, node, group_workers(count, caches)),
      signals_(2, node) {}

Result<std::unique_ptr<Workers>> Workers::start(std::span<const int> cpus, bool crowded, int node,
                                                std::span<const int> processors,
                                                std::span<const int> caches) {
  if (cpus.empty()) return machine_refused("there is no processor that this process may use");
  const uint32_t spins = crowded ? 0 : spins_for(cpus);
  std::unique_ptr<Workers> workers(new Workers(cpus.size(), spins, node, caches));
  for (size_t worker = 0; worker < cpus.size(); ++worker) {
    try {
      workers->threads_.emplace_back([pool = workers.get(), worker] { pool->work(worker); });
    } catch (const std::system_error& error) {
      return machine_refused(
          "cannot start worker thread {} of {}: {}; raise the limit on threads (ulimit -u, "
          "TasksMax) or lower --workers",
          worker, cpus.size(), error.what());
    }
    // As ps and top show it; at most 15 bytes.
    const std::string name = fmt::format("worker-{}", worker);
    pthread_setname_np(workers->threads_.back().native_handle(), name.c_str());
    const auto where = cpus[worker] < 0 ? processors : cpus.subspan(worker, 1);
    if (where.empty()) continue;
    const int failed = pin(workers->threads_.back().native_handle(), where);
    if (failed != 0) {
      return machine_refused("cannot pin worker {} to processor {}: {}", worker,
                             fmt::join(where, ","), std::strerror(failed));
    }
  }
  return workers;
}

Workers::~Workers() {
  job_ = nullptr;
  started().set(++jobs_);
  for (std::thread& thread : threads_) thread.join();
}

void Workers::begin(const std::function<void(size_t)>& job) {
  job_ = &job;
  started().set(++jobs_);
}

void Workers::finish() {
  done().wait_for(jobs_, 0);
}

void Workers::work(size_t worker) {
  const uint32_t start_spins = std::min(spins_, kStartSpins);
  for (uint32_t next = 1;; ++next) {
    started().wait_for(next, start_spins);
    if (job_ == nullptr) return;
    (*job_)(worker);
    barrier_.arrive_and_wait(worker);
    if (worker == 0) done().set(next);
  }
}

}  // namespace lockstep
