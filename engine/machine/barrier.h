// Where the workers of a rank meet: nobody leaves before all have arrived, and what was written
// before is seen by all after. Each worker has a padded line of its own; worker 0 gathers them and
// releases the others through one more line: two cache-line transfers, no shared counter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/machine/signal_line.h"

namespace lockstep {

// The second level: one line per pair of ranks, so that each rank's first worker looks at lines of
// its own only.
class RankLinks {
 public:
  RankLinks(size_t rank_count, uint32_t spins);

  // Called by the first worker of each rank, once per round: returns when all ranks have come.
  void meet(size_t rank);

 private:
  struct alignas(kLineBytes) Round {
    uint32_t number = 0;  // touched by its rank's first worker alone
  };

  size_t rank_count_;
  uint32_t spins_;
  std::vector<SignalLine> arrived_;  // [to][from]
  std::vector<Round> rounds_;
};

class Barrier {
 public:
  // `spins`: how often a worker looks before it sleeps; 0 where workers outnumber processors.
  Barrier(size_t worker_count, uint32_t spins);

  // In two calls, so that a worker can do something useful in between. Each worker 0 to
  // worker_count - 1 calls both, in turn, once per round.
  void arrive(size_t worker);
  void wait(size_t worker);
  // Instead of wait(): for the workers of all ranks that have joined the same links. Every rank
  // calls it in the same rounds.
  void wait_for_all_ranks(size_t worker);

  void arrive_and_wait(size_t worker) {
    arrive(worker);
    wait(worker);
  }

  // Before the first round. `links` must outlive this.
  void join(RankLinks& links, size_t rank);

 private:
  struct alignas(kLineBytes) Round {
    uint32_t number = 0;  // touched by its worker alone
  };

  void gather(size_t worker, RankLinks* links);

  uint32_t spins_;
  RankLinks* links_ = nullptr;
  size_t rank_ = 0;
  std::vector<SignalLine> arrived_;  // one per worker; worker 0's is unused
  std::vector<Round> rounds_;
  SignalLine released_;
};

}  // namespace lockstep
