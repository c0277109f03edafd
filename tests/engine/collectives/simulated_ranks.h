// Ranks with threads and exchange arenas, but without a model or a node.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "engine/collectives/shared_memory.h"
#include "engine/machine/node_memory.h"
#include "engine/machine/workers.h"

namespace lockstep {

class MadeUpRanks {
 public:
  // `cpus`: of each rank's workers. `bytes`: of each rank's exchange arena, zeroed.
  MadeUpRanks(const std::vector<std::vector<int>>& cpus, size_t bytes, bool crowded);

  size_t count() const { return workers_.size(); }
  const Peers& peers(size_t rank) const { return peers_[rank]; }
  size_t worker_count(size_t rank) const { return workers_[rank]->count(); }
  Barrier& barrier(size_t rank) { return workers_[rank]->barrier(); }

  // A place in a rank's arena; the same offset is the same buffer's copy on every rank.
  template <typename T>
  T* at(size_t rank, size_t offset_bytes) {
    return reinterpret_cast<T*>(arenas_[rank].data() + offset_bytes);
  }

  // Runs job(rank, worker) on every worker of every rank at the same time.
  void run(const std::function<void(size_t rank, size_t worker)>& job);

  // For the job: meets all workers of all ranks.
  void meet(size_t rank, size_t worker) {
    barrier(rank).arrive(worker);
    barrier(rank).wait_for_all_ranks(worker);
  }

 private:
  std::vector<NodeMemory> arenas_;
  std::vector<Peers> peers_;
  std::unique_ptr<RankLinks> links_;
  std::vector<std::unique_ptr<Workers>> workers_;
};

}  // namespace lockstep
