#include "engine/runtime/ranks.h"

#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "engine/base/check.h"

namespace lockstep {
namespace {

// Whether workers of different ranks need the same processor to make progress.
bool is_crowded(std::span<const RankPlace> places) {
  size_t worker_count = 0;
  bool shared = false;
  std::set<int> seen;
  for (const RankPlace& place : places) {
    worker_count += place.cpus.size();
    const std::set<int> own(place.cpus.begin(), place.cpus.end());
    for (const int cpu : own) shared = shared || (cpu >= 0 && !seen.insert(cpu).second);
  }
  return shared || worker_count > std::thread::hardware_concurrency();
}

// Every rank at the same time: clearing a node's memory is the work of that node.
Result<void> allocate_all(std::span<const std::unique_ptr<Rank>> ranks,
                          std::span<const Plan> sizes) {
  std::vector<Result<void>> results(ranks.size());
  {
    std::vector<std::jthread> threads;
    for (size_t rank = 1; rank < ranks.size(); ++rank) {
      threads.emplace_back([&, rank] { results[rank] = ranks[rank]->allocate(sizes[rank]); });
    }
    results[0] = ranks[0]->allocate(sizes[0]);
  }
  for (Result<void>& result : results) {
    if (!result) return std::move(result);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Ranks>> Ranks::make(const Graph& graph, const Split& split,
                                           const PlanOptions& options,
                                           std::span<const RankPlace> places) {
  CHECK(places.size() == split.rank_count, "{} places for a split over {} ranks", places.size(),
        split.rank_count);
  std::unique_ptr<Ranks> made(new Ranks());
  const bool crowded = places.size() > 1 && is_crowded(places);
  std::vector<Plan> sizes;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    auto started = Rank::start(places[rank], crowded);
    if (!started) return std::unexpected(started.error());
    made->ranks_.push_back(std::move(*started));
    sizes.push_back(make_plan(graph, split, rank, options));
  }
  if (auto taken = allocate_all(made->ranks_, sizes); !taken) {
    return std::unexpected(taken.error());
  }
  std::vector<ArenaAddresses> arenas;
  for (const auto& rank : made->ranks_) arenas.push_back(rank->arenas());
  for (size_t rank = 0; rank < places.size(); ++rank) {
    made->ranks_[rank]->set_plan(make_plan(graph, split, rank, options, arenas));
  }
  if (places.size() > 1) {
    made->links_ =
        std::make_unique<RankLinks>(places.size(), made->ranks_.front()->workers().spins());
    for (size_t rank = 0; rank < places.size(); ++rank) {
      made->ranks_[rank]->workers().barrier().join(*made->links_, rank);
    }
  }
  return made;
}

}  // namespace lockstep
