// The pinned threads of one rank. All of them run the same job at the same time and share the
// rank's barrier. Between jobs they spin for a moment, then sleep: an idle pool uses no processor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "engine/base/result.h"
#include "engine/machine/barrier.h"

namespace lockstep {

class Workers {
 public:
  // One thread per entry of `cpus`, pinned to that processor; -1 leaves it unpinned. A processor
  // may occur more than once. Fails with kMachineRefused when a thread cannot be made or pinned.
  // `crowded`: other pools need the same processors, so that looking again and again would hold
  // them up. `node`: where the lines lie that they look at; -1: anywhere.
  // `processors`: where threads that are not pinned to one may run; none: anywhere.
  // `caches`: as for group_workers().
  static Result<std::unique_ptr<Workers>> start(std::span<const int> cpus, bool crowded = false,
                                                int node = -1, std::span<const int> processors = {},
                                                std::span<const int> caches = {});

  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  size_t count() const { return threads_.size(); }

  // Runs job(worker) on every worker and returns when all are done. One caller at a time. The job
  // must not throw.
  void run(const std::function<void(size_t worker)>& job) {
    begin(job);
    finish();
  }

  // run() in two calls, so that one caller can have several pools work at once. `job` must live
  // until finish() has returned.
  void begin(const std::function<void(size_t worker)>& job);
  void finish();

  // How often a worker looks for the others before it sleeps; 0: it does not, the pool is crowded.
  uint32_t spins() const { return spins_; }

  // The barrier of the job's workers.
  Barrier& barrier() { return barrier_; }

 private:
  Workers(size_t count, uint32_t spins, int node, std::span<const int> caches);
  void work(size_t worker);
  SignalLine& started() { return signals_[0]; }  // number of jobs begun; the workers wait for it
  SignalLine& done() { return signals_[1]; }     // number of jobs ended; set by worker 0

  uint32_t spins_;
  Barrier barrier_;
  SignalLines signals_;
  uint32_t jobs_ = 0;                                 // begin()'s count
  const std::function<void(size_t)>* job_ = nullptr;  // null: end; published by started()
  std::vector<std::thread> threads_;
};

}  // namespace lockstep
