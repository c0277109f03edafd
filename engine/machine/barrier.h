// Where the workers of a rank meet: nobody leaves before all have arrived, and what was written
// before is seen by all after. Each worker has a padded line of its own; worker 0 gathers them and
// releases the others through one more line: two cache-line transfers, no shared counter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/machine/signal_line.h"

namespace lockstep {

class Barrier {
 public:
  // `spins`: how often a worker looks before it sleeps; 0 where workers outnumber processors.
  Barrier(size_t worker_count, uint32_t spins);

  // In two calls, so that a worker can do something useful in between. Each worker 0 to
  // worker_count - 1 calls both, in turn, once per round.
  void arrive(size_t worker);
  void wait(size_t worker);

  void arrive_and_wait(size_t worker) {
    arrive(worker);
    wait(worker);
  }

 private:
  struct alignas(kLineBytes) Round {
    uint32_t number = 0;  // touched by its worker alone
  };

  uint32_t spins_;
  std::vector<SignalLine> arrived_;  // one per worker; worker 0's is unused
  std::vector<Round> rounds_;
  SignalLine released_;
};

}  // namespace lockstep
