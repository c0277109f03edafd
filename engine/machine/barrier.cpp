#include "engine/machine/barrier.h"

namespace lockstep {

Barrier::Barrier(size_t worker_count, uint32_t spins)
    : spins_(spins), arrived_(worker_count), rounds_(worker_count) {}

void Barrier::arrive(size_t worker) {
  const uint32_t round = ++rounds_[worker].number;
  if (worker != 0) arrived_[worker].set(round);
}

void Barrier::wait(size_t worker) {
  const uint32_t round = rounds_[worker].number;
  if (worker != 0) {
    released_.wait_for(round, spins_);
    return;
  }
  for (size_t other = 1; other < arrived_.size(); ++other) {
    arrived_[other].wait_for(round, spins_);
  }
  if (arrived_.size() > 1) released_.set(round);
}

}  // namespace lockstep
