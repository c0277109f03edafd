#include "engine/runtime/ranks.h"

#include <functional>
#include <map>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/base/check.h"
#include "engine/runtime/hosts/host_exchange.h"
#include "engine/runtime/node/node_rank.h"

namespace lockstep {

Result<void> Ranks::open(std::span<const RankPlace> places, Strategy strategy,
                         const GpuPlatform* gpus) {
  if (workers_ == nullptr) {
    std::function<void()> exchange;
    if (hosts_ != nullptr) exchange = [hosts = hosts_] { hosts->exchange(); };
    auto started = PlaceWorkers::start(places, std::move(exchange));
    if (!started) return std::unexpected(started.error());
    workers_ = std::move(*started);
  }
  CHECK(workers_->count() == places.size(), "workers of {} places for {}", workers_->count(),
        places.size());
  std::vector<GpuRank*> on_gpus;
  for (const RankPlace& place : places) {
    Workers& workers = (*workers_)[ranks_.size()];
    if (const auto* const gpu = std::get_if<GpuPlace>(&place.device)) {
      CHECK(gpus != nullptr, "a rank on gpu{} without a way to use it", gpu->index);
      auto opened = GpuRank::open(place, workers, *gpus);
      if (!opened) return std::unexpected(opened.error());
      on_gpus.push_back(opened->get());
      ranks_.push_back(std::move(*opened));
    } else {
      ranks_.push_back(std::make_unique<NodeRank>(place, workers));
    }
  }
  const bool mixed = !on_gpus.empty() && on_gpus.size() < places.size();
  CHECK(!mixed || on_gpus.front() == ranks_.front().get(), "rank 0 is no GPU, and others are");
  const auto of_gpus =
      strategy == Strategy::kLayers ? GpuGroup::Division::kByLayers : GpuGroup::Division::kOfLayers;
  gpus_ = std::make_unique<GpuGroup>(std::move(on_gpus),
                                     mixed ? GpuGroup::Division::kAmongProcessors : of_gpus);
  return {};
}

// The ranks of one node follow one another, so that each sees what the ones before have left.
Result<void> Ranks::allocate_on_node(std::span<const size_t> ranks, std::span<Plan> plans,
                                     std::span<ArenaSources> sources) {
  for (const size_t rank : ranks) {
    auto taken = ranks_[rank]->allocate(std::move(plans[rank]), std::move(sources[rank]));
    if (!taken) return taken;
  }
  return {};
}

// Every node at the same time: clearing its memory is the work of its own processors.
Result<void> Ranks::allocate(std::span<Plan> plans, std::span<ArenaSources> sources) {
  std::map<int, std::vector<size_t>> on_node;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    on_node[ranks_[rank]->place().node].push_back(rank);
  }
  std::vector<Result<void>> results(on_node.size());
  const auto take = [this, plans, sources](Result<void>& result, std::span<const size_t> ranks) {
    try {
      result = allocate_on_node(ranks, plans, sources);
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

Result<std::unique_ptr<Ranks>> Ranks::make(const Graph& graph, const Split& split,
                                           const PlanOptions& options,
                                           std::span<const RankPlace> places,
                                           std::vector<ArenaSources> sources,
                                           const GpuPlatform* gpus,
                                           std::shared_ptr<PlaceWorkers> workers) {
  CHECK(places.size() == split.rank_count, "{} places for a split over {} ranks", places.size(),
        split.rank_count);
  sources.resize(places.size());
  std::unique_ptr<Ranks> made(new Ranks());
  made->workers_ = std::move(workers);
  if (auto opened = made->open(places, split.strategy, gpus); !opened) {
    return std::unexpected(opened.error());
  }
  if (auto reached = made->gpus_->reach(); !reached) return std::unexpected(reached.error());
  CHECK(places.size() == 1 || made->gpus_->is_empty() || split.strategy != Strategy::kGather,
        "GPUs under {}", strategy_name(split.strategy));
  std::vector<Plan> plans;  // by rank
  for (const RankPlace& place : places) {
    plans.push_back(make_plan(graph, split, plans.size(), options_on(place, options)));
  }
  if (auto taken = made->allocate(plans, sources); !taken) return std::unexpected(taken.error());
  if (auto connected = made->gpus_->connect(made->root_plan()); !connected) {
    return std::unexpected(connected.error());
  }
  if (auto bound = made->bind(); !bound) return std::unexpected(bound.error());
  if (auto exchanged = made->gpus_->exchange_first(); !exchanged) {
    return std::unexpected(exchanged.error());
  }
  return made;
}

Result<std::unique_ptr<Ranks>> Ranks::make_among_hosts(const Graph& graph, const Split& split,
                                                       const PlanOptions& options,
                                                       std::span<const RankPlace> places,
                                                       std::vector<ArenaSources> sources,
                                                       HostExchange& exchange,
                                                       const GpuPlatform* gpus) {
  const bool are_joined = split.strategy == Strategy::kReduce;
  CHECK(are_joined || split.strategy == Strategy::kGather, "{} among hosts",
        strategy_name(split.strategy));
  const Range own = exchange.ranks().own();
  const std::span<const RankPlace> here = places.subspan(own.begin, own.size());
  sources.resize(here.size());
  std::unique_ptr<Ranks> made(new Ranks());
  made->hosts_ = &exchange;
  if (auto opened = made->open(here, split.strategy, gpus); !opened) {
    return std::unexpected(opened.error());
  }
  if (are_joined) made->gpus_->keep_logits_apart();
  std::vector<Plan> plans;
  for (size_t rank = own.begin; rank < own.end; ++rank) {
    // GPUs of a host reach no memory of another's for what they have of the logits.
    const auto make = are_joined || rank == own.begin ? make_first_plan : make_plan;
    plans.push_back(make(graph, split, rank, options_on(places[rank], options)));
  }
  if (auto taken = made->allocate(plans, sources); !taken) return std::unexpected(taken.error());
  if (are_joined) {
    auto connected =
        made->gpus_->connect_hosts(exchange.group(), exchange.plans(), exchange.ranks());
    if (!connected) return std::unexpected(connected.error());
  }
  if (auto bound = made->bind(); !bound) return std::unexpected(bound.error());
  if (auto exchanged = made->gpus_->exchange_first(); !exchanged) {
    return std::unexpected(exchanged.error());
  }
  std::vector<ArenaAddresses> addresses;
  for (const auto& rank : made->ranks_) addresses.push_back(rank->addresses());
  exchange.bind(std::move(addresses));
  return made;
}

Result<void> Ranks::bind() {
  std::vector<ArenaAddresses> arenas;
  for (const auto& rank : ranks_) arenas.push_back(rank->arenas());
  for (const auto& rank : ranks_) {
    if (auto bound = rank->bind(arenas, ranks_.front()->plan().rank); !bound) return bound;
  }
  return {};
}

Result<std::unique_ptr<Ranks>> Ranks::make_bare(std::span<const RankPlace> places,
                                                size_t exchange_bytes) {
  std::unique_ptr<Ranks> made(new Ranks());
  if (auto opened = made->open(places, Strategy::kGather); !opened) {
    return std::unexpected(opened.error());
  }
  Plan size;
  size.exchange_bytes = exchange_bytes;
  std::vector<Plan> sizes(places.size(), size);
  std::vector<ArenaSources> sources(places.size());
  if (auto taken = made->allocate(sizes, sources); !taken) return std::unexpected(taken.error());
  return made;
}

}  // namespace lockstep
