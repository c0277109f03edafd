#include "engine/runtime/ranks.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/runtime/gpu_link_trial.h"

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

// What only seems to reach another's memory nobody is to rely on, NCCL included: it would.
Result<void> reach_gpus(std::span<GpuRank* const> gpus, Result<void>& reached) {
  reached = GpuRank::reach(gpus);
  if (!reached) return {};
  auto sound = GpuRank::try_links(gpus);
  if (sound) return {};
  const char* const apart = std::getenv(kNcclWithoutPeers);
  if (apart == nullptr || std::string_view(apart) != "1") return sound;
  reached = std::move(sound);
  return {};
}

}  // namespace

Result<void> Ranks::start(std::span<const RankPlace> places, const GpuPlatform* gpus) {
  const bool crowded = places.size() > 1 && is_crowded(places);
  for (const RankPlace& place : places) {
    auto started = Rank::start(place, crowded, gpus);
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

// The ranks of one node follow one another, so that each sees what the ones before have left.
Result<void> Ranks::allocate_on_node(std::span<const size_t> ranks, std::span<const Plan> sizes,
                                     std::span<ArenaSources> sources) {
  for (const size_t rank : ranks) {
    const HostShare host{.exchange = is_mixed(), .logits = logits_on_host()};
    auto taken = ranks_[rank]->allocate(sizes[rank], std::move(sources[rank]), host);
    if (!taken) return taken;
  }
  return {};
}

// Every node at the same time: clearing its memory is the work of its own processors.
Result<void> Ranks::allocate(std::span<const Plan> sizes, std::span<ArenaSources> sources) {
  std::map<int, std::vector<size_t>> on_node;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    on_node[ranks_[rank]->place().node].push_back(rank);
  }
  std::vector<Result<void>> results(on_node.size());
  const auto take = [this, sizes, sources](Result<void>& result, std::span<const size_t> ranks) {
    try {
      result = allocate_on_node(ranks, sizes, sources);
    } catch (const std::bad_alloc&) {
      result = std::unexpected(Error{ErrorKind::kMachineRefused, "no memory left"});
    }
  };
  try {
    std::vector<std::jthread> threads;
    size_t index = 0;
    for (const auto& [node, ranks] : on_node) {
      Result<void>& result = results[index++];
      if (index == on_node.size()) {
        take(result, ranks);
      } else {
        threads.emplace_back([&take, &result, &on_this = ranks] { take(result, on_this); });
      }
    }
  } catch (const std::system_error& error) {
    return machine_refused(
        "cannot start a thread to take memory on a node: {}; raise the limit on threads (ulimit "
        "-u, TasksMax)",
        error.what());
  }
  for (Result<void>& result : results) {
    if (!result) return std::move(result);
  }
  return {};
}

bool Ranks::is_mixed() const {
  const auto is_gpu = [](const auto& rank) { return rank->gpu() != nullptr; };
  return std::ranges::any_of(ranks_, is_gpu) && !std::ranges::all_of(ranks_, is_gpu);
}

bool Ranks::logits_on_host() const {
  const bool alone = ranks_.size() == 1 && ranks_.front()->gpu() != nullptr;
  return !alone && !shares_gpu_memory();
}

std::vector<GpuRank*> Ranks::linked_gpus() const {
  std::vector<GpuRank*> gpus;
  if (ranks_.size() == 1 || ranks_.front()->gpu() == nullptr || is_mixed()) return gpus;
  for (const auto& rank : ranks_) gpus.push_back(rank->gpu());
  return gpus;
}

// Processors reach none of the GPUs' memory: with those they exchange by the host.
Result<void> Ranks::connect_gpus(const Plan& sizes) {
  const std::vector<GpuRank*> gpus = linked_gpus();
  if (gpus.empty()) return {};
  auto joined = GpuRank::connect(gpus, sizes, reached_);
  if (!joined) return std::unexpected(joined.error());
  nccl_ = std::move(*joined);
  return {};
}

Result<void> Ranks::outcome(std::span<const Result<void>> results) const {
  Result<void> outcome;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (results[rank]) continue;
    const GpuRank* const gpu = ranks_[rank]->gpu();
    if (gpu == nullptr || !gpu->has_waited_in_vain()) return results[rank];
    if (outcome) outcome = results[rank];
  }
  return outcome;
}

Result<void> Ranks::run_on_gpus(const std::function<Result<void>(size_t rank)>& job) {
  std::vector<Result<void>> results(ranks_.size());
  std::vector<std::function<void(size_t)>> jobs;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    jobs.emplace_back([&job, &results, rank](size_t) { results[rank] = job(rank); });
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank]->workers().begin(jobs[rank]);
  for (const auto& rank : ranks_) rank->workers().finish();
  return outcome(results);
}

// Sums of two ranks send as much either way. That no plan is made yet is what leaves the memory of
// activations to the trial; recordings come after.
Result<void> Ranks::choose_shots(const Plan& sizes) {
  const std::vector<GpuRank*> gpus = linked_gpus();
  if (gpus.size() <= 2 || !shares_gpu_memory()) return {};
  size_t bytes_max = exchanged_floats_max(sizes) * sizeof(float);
  for (const GpuRank* gpu : gpus) bytes_max = std::min(bytes_max, gpu->timed_sum_bytes_max());
  if (bytes_max < kGpuSumTrialBytesMin) return {};
  std::vector<std::vector<GpuSumRounds>> rounds(gpus.size());
  auto timed = run_on_gpus([&](size_t rank) -> Result<void> {
    auto own = gpus[rank]->time_sums(bytes_max);
    if (!own) return std::unexpected(std::move(own).error());
    rounds[rank] = std::move(*own);
    return {};
  });
  if (!timed) return timed;
  const std::vector<GpuSumTime> times = slowest_medians(rounds);
  const size_t one_shot_max = one_shot_bytes_max(times);
  for (GpuRank* gpu : gpus) gpu->set_one_shot_bytes_max(one_shot_max);
  spdlog::info("sums of up to {} KiB between {} GPUs take one shot, larger ones two: {}",
               one_shot_max >> 10U, gpus.size(), sum_times_text(times));
  return {};
}

Result<void> Ranks::exchange_first() {
  if (nccl_ == nullptr) return {};
  auto exchanged = run_on_gpus([this](size_t rank) {
    auto own = ranks_[rank]->gpu()->exchange_first();
    if (!own) nccl_->abort(own.error());
    return own;
  });
  if (exchanged) nccl_->set_deadline(GpuRank::kSumDeadline);
  return exchanged;
}

Result<std::unique_ptr<Ranks>> Ranks::make(const Graph& graph, const Split& split,
                                           const PlanOptions& options,
                                           std::span<const RankPlace> places,
                                           std::vector<ArenaSources> sources,
                                           const GpuPlatform* gpus) {
  CHECK(places.size() == split.rank_count, "{} places for a split over {} ranks", places.size(),
        split.rank_count);
  sources.resize(places.size());
  std::unique_ptr<Ranks> made(new Ranks());
  if (auto started = made->start(places, gpus); !started) {
    return std::unexpected(started.error());
  }
  if (const auto linked = made->linked_gpus(); !linked.empty()) {
    if (auto tried = reach_gpus(linked, made->reached_); !tried) {
      return std::unexpected(tried.error());
    }
  }
  CHECK(!made->is_mixed() || places.front().gpu >= 0, "rank 0 is no GPU, and others are");
  std::vector<PlanOptions> own;  // by rank
  for (const RankPlace& place : places) {
    CHECK(places.size() == 1 || place.gpu < 0 || split.strategy == Strategy::kReduce,
          "gpu{} under {}", place.gpu, strategy_name(split.strategy));
    own.push_back(options_on(place, options));
  }
  std::vector<Plan> sizes;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    sizes.push_back(make_plan(graph, split, rank, own[rank]));
  }
  if (auto taken = made->allocate(sizes, sources); !taken) return std::unexpected(taken.error());
  if (auto joined = made->connect_gpus(sizes.front()); !joined)
    return std::unexpected(joined.error());
  if (auto chosen = made->choose_shots(sizes.front()); !chosen) {
    return std::unexpected(chosen.error());
  }
  std::vector<ArenaAddresses> arenas;
  for (const auto& rank : made->ranks_) arenas.push_back(rank->arenas());
  for (size_t rank = 0; rank < places.size(); ++rank) {
    auto set = made->ranks_[rank]->set_plan(make_plan(graph, split, rank, own[rank], arenas));
    if (!set) return std::unexpected(set.error());
  }
  if (auto exchanged = made->exchange_first(); !exchanged) {
    return std::unexpected(exchanged.error());
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
  std::vector<ArenaSources> sources(places.size());
  if (auto taken = made->allocate(sizes, sources); !taken) return std::unexpected(taken.error());
  return made;
}

}  // namespace lockstep
