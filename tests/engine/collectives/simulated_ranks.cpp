#include "tests/engine/collectives/simulated_ranks.h"

#include "engine/base/check.h"

namespace lockstep {

MadeUpRanks::MadeUpRanks(const std::vector<std::vector<int>>& cpus, size_t bytes, bool crowded) {
  for (const std::vector<int>& own : cpus) {
    auto workers = Workers::start(own, crowded);
    CHECK(workers.has_value(), "{}", workers.error().message);
    workers_.push_back(std::move(*workers));
    auto arena = NodeMemory::allocate({.bytes = bytes, .what = "a simulated rank"});
    CHECK(arena.has_value(), "{}", arena.error().message);
    arenas_.push_back(std::move(*arena));
  }
  links_ = std::make_unique<RankLinks>(count(), workers_.front()->spins());
  for (size_t rank = 0; rank < count(); ++rank) {
    barrier(rank).join(*links_, rank);
    peers_.push_back({rank, {}});
    for (const NodeMemory& other : arenas_) {
      peers_.back().distances.push_back(
          static_cast<std::ptrdiff_t>(reinterpret_cast<uintptr_t>(other.data()) -
                                      reinterpret_cast<uintptr_t>(arenas_[rank].data())));
    }
  }
}

void MadeUpRanks::run(const std::function<void(size_t, size_t)>& job) {
  std::vector<std::function<void(size_t)>> jobs;
  for (size_t rank = 0; rank < count(); ++rank) {
    jobs.emplace_back([&job, rank](size_t worker) { job(rank, worker); });
  }
  for (size_t rank = 0; rank < count(); ++rank) workers_[rank]->begin(jobs[rank]);
  for (const auto& workers : workers_) workers->finish();
}

}  // namespace lockstep
