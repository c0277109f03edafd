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

}  // namespace

Result<void> Ranks::start(std::span<const RankPlace> places) {
  const bool crowded = places.size() > 1 && is_crowded(places);
  for (const RankPlace& place : places) {
    auto started = Rank::start(place, crowded);
    if (!started) return std::unexpected(started.error());
    ranks_.push_back(std::move(*started));
  }
  if (places.size() == 1) return {};
  std::vector<int> nodes;
  for (const RankPlace& place : places) nodes.push_back(place.node);
  links_ = std::make_unique<RankLinks>(places.size(), ranks_.front()->workers().spins(), nodes);
  for (size_t rank = 0; rank < places.size(); ++rank) {
    ranks_[rank]->workers().barrier().join(*links_, rank);
  }
  return {};
}

// Every rank at the same time: clearing a node's memory is the work of that node.
Result<void> Ranks::allocate(std::span<const Plan> sizes) {
  std::vector<Result<void>> results(ranks_.size());
  {
    std::vector<std::jthread> threads;
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      threads.emplace_back([&, rank] { results[rank] = ranks_[rank]->allocate(sizes[rank]); });
    }
    results[0] = ranks_[0]->allocate(sizes[0]);
  }
  for (Result<void>& result : results) {
    if (!result) return std::move(result);
  }
  return {};
}

Result<std::unique_ptr<Ranks>> Ranks::make(const Graph& graph, const Split& split,
                                           const PlanOptions& options,
                                           std::span<const RankPlace> places) {
  CHECK(places.size() == split.rank_count, "{} places for a split over {} ranks", places.size(),
        split.rank_count);
  std::unique_ptr<Ranks> made(new Ranks());
  if (auto started = made->start(places); !started) return std::unexpected(started.error());
  std::vector<Plan> sizes;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    sizes.push_back(make_plan(graph, split, rank, options));
  }
  if (auto taken = made->allocate(sizes); !taken) return std::unexpected(taken.error());
  std::vector<ArenaAddresses> arenas;
  for (const auto& rank : made->ranks_) arenas.push_back(rank->arenas());
  for (size_t rank = 0; rank < places.size(); ++rank) {
    made->ranks_[rank]->set_plan(make_plan(graph, split, rank, options, arenas));
  }
  return made;
}

Result<std::unique_ptr<Ranks>> Ranks::make_bare(std::span<const RankPlace> places,
                                                size_t exchange_bytes) {
  std::unique_ptr<Ranks> made(new Ranks());
  if (auto started = made->start(places); !started) return std::unexpected(started.error());
  Plan size;
  size.exchange_bytes = exchange_bytes;
  const std::vector<Plan> sizes(places.size(), size);
  if (auto taken = made->allocate(sizes); !taken) return std::unexpected(taken.error());
  return made;
}

}  // namespace lockstep
