// All ranks of the machine, each with its plan of the same graph. Where several machines compute it
// together, those of this one; the others' are known by their plans alone (hosts/host_exchange.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/planner/planner.h"
#include "engine/runtime/gpu/gpu_group.h"
#include "engine/runtime/place_workers.h"
#include "engine/runtime/rank.h"

namespace lockstep {

class HostExchange;

class Ranks {
 public:
  // Makes the plans and takes their memory. The split is for as many ranks as there are places.
  // Weights that no source holds are not loaded yet. `sources`: of every rank, or none. `gpus`: the
  // platform of places on GPUs; where some are, the first place is one: its GPU makes the logits
  // reachable for all. `workers`: of these places, where another model's ranks compute there as
  // well, in turns; none: they are started.
  static Result<std::unique_ptr<Ranks>> make(const Graph& graph, const Split& split,
                                             const PlanOptions& options,
                                             std::span<const RankPlace> places,
                                             std::vector<ArenaSources> sources = {},
                                             const GpuPlatform* gpus = nullptr,
                                             std::shared_ptr<PlaceWorkers> workers = {});

  // The ranks of this host among those of several: `places` has all of them, those of other hosts
  // as they are there, and `sources` this host's. All are processors, under `gather`, or GPUs,
  // under `reduce`, which NCCL joins in the exchange's group. `exchange` must outlive the ranks.
  static Result<std::unique_ptr<Ranks>> make_among_hosts(const Graph& graph, const Split& split,
                                                         const PlanOptions& options,
                                                         std::span<const RankPlace> places,
                                                         std::vector<ArenaSources> sources,
                                                         HostExchange& exchange,
                                                         const GpuPlatform* gpus = nullptr);
  // After a group of several hosts has failed, between passes: whether GPUs can go on, and NCCL
  // joins them anew in another. Other ranks have nothing to do.
  Result<void> recover() { return gpus_->recover(); }
  Result<void> join_again(HostGroup& group) { return gpus_->join_again(group); }

  // The same without a model: only an exchange arena of `exchange_bytes` each. For measurements.
  static Result<std::unique_ptr<Ranks>> make_bare(std::span<const RankPlace> places,
                                                  size_t exchange_bytes);

  size_t count() const { return ranks_.size(); }
  Rank& operator[](size_t rank) { return *ranks_[rank]; }
  const Rank& operator[](size_t rank) const { return *ranks_[rank]; }
  // All are GPUs, several, and each reaches the others' memory.
  bool shares_gpu_memory() const { return gpus_->shares_memory(); }
  const std::shared_ptr<PlaceWorkers>& workers() const { return workers_; }
  HostExchange* hosts() const { return hosts_; }                    // null: there are no others
  const Plan& root_plan() const { return ranks_.front()->plan(); }  // where the logits lie
  Result<void> outcome(std::span<const Result<void>> results) const {
    return outcome_of(results, ranks_);  // of a pass
  }

 private:
  Ranks() = default;

  // At these places, with workers_, which are started if there are none.
  Result<void> open(std::span<const RankPlace> places, Strategy strategy,
                    const GpuPlatform* gpus = nullptr);
  // One plan and one source per rank; they are moved from.
  Result<void> allocate(std::span<Plan> plans, std::span<ArenaSources> sources);
  Result<void> bind();
  Result<void> allocate_on_node(std::span<const size_t> ranks, std::span<Plan> plans,
                                std::span<ArenaSources> sources);

  HostExchange* hosts_ = nullptr;
  std::shared_ptr<PlaceWorkers> workers_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<GpuGroup> gpus_;  // those that are on GPUs
};

}  // namespace lockstep
