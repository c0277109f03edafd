// The barrier of a rank's workers: no worker leaves before all have arrived, and all see after it
// what was written before. Each worker has a padded line of its own. Few workers look at one
// another's lines: one cache-line transfer. With many, worker 0 looks at all and releases the
// others through one more line: two transfers. Of more than 16 each group does so, by the cache
// that its workers share, and the groups' first workers among themselves: four transfers, but no
// line that all others wait for.
//
// If workers outnumber processors, those two ways would have every thread run twice per round.
// There they count themselves, the last one releases the others, and a waiter yields its processor
// before it sleeps: a yield is a fifth of what sleeping and being woken costs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/machine/signal_line.h"

namespace lockstep {

// The second level: one line per ordered pair of ranks, on the node of the rank that looks at it.
class RankLinks {
 public:
  // `spins`: as for Barrier. `nodes`: one per rank; none: the machine does not say.
  // `when_all_are_there`: called once per round, by one of those who meet, when all have come and
  // before any of them goes on; sees what they have written before, and they see what it has.
  RankLinks(size_t rank_count, uint32_t spins, std::span<const int> nodes = {},
            std::function<void()> when_all_are_there = {});

  // Called by one worker of each rank at a time, once per round: returns when all ranks have come.
  void meet(size_t rank);

 private:
  struct alignas(kLineBytes) Round {
    uint32_t number = 0;  // touched by its rank's representative alone
  };

  void meet_crowded(uint32_t round);
  void meet_at_first(size_t rank, uint32_t round);

  uint32_t spins_;
  std::function<void()> when_all_are_there_;
  std::vector<std::unique_ptr<SignalLines>> arrived_;  // [to][from]
  std::vector<Round> rounds_;
  alignas(kLineBytes) std::atomic<uint32_t> arrived_count_ = 0;  // crowded: of this round
  SignalLine released_;                                          // crowded: by the last rank
};

// Workers that meet first, each group's leader in front. Every worker is in one group, and worker 0
// leads the first.
using WorkerGroups = std::vector<std::vector<size_t>>;

// The groups of a rank's workers: none up to 16 workers, else by the cache that they share.
// `caches`: one number per worker, equal where it is the same cache; none: unknown. Groups of
// neighbours, of even sizes, where it is unknown, where nearly every worker has a cache of its own,
// and where more than 16 share one.
WorkerGroups group_workers(size_t worker_count, std::span<const int> caches = {});

class Barrier {
 public:
  // `spins`: how often a worker looks before it sleeps; 0 where workers outnumber processors.
  // `node`: where the lines lie; -1: anywhere.
  // `groups`: of the workers; none: all meet in one level, as they do in any case with 0 spins.
  Barrier(size_t worker_count, uint32_t spins, int node = -1, WorkerGroups groups = {});

  // In two calls, so that a worker can do something useful in between; the others may have to wait
  // for its end. Each worker 0 to worker_count - 1 calls both, in turn, once per round.
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
    uint32_t number = 0;        // touched by its worker alone
    bool arrived_last = false;  // crowded
    size_t group = 0;           // place in groups_
  };

  bool crowded() const { return spins_ == 0; }
  void wait_for_workers(size_t worker);
  void release(size_t worker, RankLinks* links);
  void release_in_groups(size_t worker, RankLinks* links);

  uint32_t spins_;
  RankLinks* links_ = nullptr;
  size_t rank_ = 0;
  SignalLines arrived_;  // one per worker
  std::vector<Round> rounds_;
  SignalLines released_;                                         // one
  alignas(kLineBytes) std::atomic<uint32_t> arrived_count_ = 0;  // crowded: of this round
  WorkerGroups groups_;                                          // none: one level
  SignalLines group_arrived_;                                    // one per group, by its leader
  SignalLines group_released_;                                   // one per group, by its leader
};

}  // namespace lockstep
