#include "engine/runtime/exchange_measurement.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "engine/collectives/shared_memory.h"
#include "engine/runtime/rank.h"
#include "engine/runtime/ranks.h"

namespace lockstep {
namespace {

constexpr size_t kExchanges = 1000;
constexpr int kRounds = 3;

struct Exchanger {
  Rank& rank;
  Peers peers;
  size_t bytes = 0;  // of the rank's slice

  void work(size_t worker) const {
    const size_t count = rank.workers().count();
    std::byte* const own = reinterpret_cast<std::byte*>(rank.arenas().exchange);
    const size_t begin = bytes * worker / count;
    const size_t end = bytes * (worker + 1) / count;
    Barrier& barrier = rank.workers().barrier();
    for (size_t exchange = 0; exchange < kExchanges; ++exchange) {
      push_rows(peers, own + peers.rank * bytes + begin, 0, 1, end - begin);
      barrier.arrive(worker);
      barrier.wait_for_all_ranks(worker);
    }
  }
};

}  // namespace

Result<double> measure_exchange(std::span<const RankPlace> places, size_t bytes) {
  if (places.size() < 2) return 0.0;
  const size_t slice = std::max<size_t>(1, bytes / places.size());
  auto ranks = Ranks::make_bare(places, slice * places.size());
  if (!ranks) return std::unexpected(ranks.error());
  std::vector<std::function<void(size_t)>> jobs;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    Exchanger exchanger{(**ranks)[rank], {rank, {}}, slice};
    for (size_t other = 0; other < places.size(); ++other) {
      exchanger.peers.distances.push_back(static_cast<std::ptrdiff_t>(
          (**ranks)[other].arenas().exchange - (**ranks)[rank].arenas().exchange));
    }
    jobs.emplace_back([exchanger](size_t worker) { exchanger.work(worker); });
  }
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t rank = 0; rank < places.size(); ++rank) {
      (**ranks)[rank].workers().begin(jobs[rank]);
    }
    for (size_t rank = 0; rank < places.size(); ++rank) (**ranks)[rank].workers().finish();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    const double seconds = passed.count() / static_cast<double>(kExchanges);
    best = round == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

}  // namespace lockstep
