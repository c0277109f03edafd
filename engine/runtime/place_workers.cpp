#include "engine/runtime/place_workers.h"

#include <set>
#include <thread>
#include <utility>

namespace lockstep {
namespace {

// True where workers of different places need the same processor to make progress.
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

Result<std::shared_ptr<PlaceWorkers>> PlaceWorkers::start(std::span<const RankPlace> places,
                                                          std::function<void()> exchange) {
  const bool crowded = places.size() > 1 && is_crowded(places);
  std::shared_ptr<PlaceWorkers> made(new PlaceWorkers());
  std::vector<int> nodes;
  for (const RankPlace& place : places) {
    auto pool = Workers::start(place.cpus, crowded, place.node, place.processors, place.caches);
    if (!pool) return std::unexpected(pool.error());
    made->pools_.push_back(std::move(*pool));
    nodes.push_back(place.node);
  }
  if (places.size() == 1 && !exchange) return made;
  made->links_ = std::make_unique<RankLinks>(places.size(), made->pools_.front()->spins(), nodes,
                                             std::move(exchange));
  for (size_t place = 0; place < places.size(); ++place) {
    made->pools_[place]->barrier().join(*made->links_, place);
  }
  return made;
}

}  // namespace lockstep
