// All ranks of the machine, each with its plan of the same graph.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/graph/planner.h"
#include "engine/machine/barrier.h"
#include "engine/runtime/rank.h"

namespace lockstep {

class Ranks {
 public:
  // Starts the workers of every place, takes the memory and makes the plans. The graph must outlive
  // the ranks; the split is for as many ranks as there are places. Weights that no source holds are
  // not loaded yet. `sources`: of every rank, or none. `gpus`: through what places on GPUs are
  // used; where some are, the first is one: its GPU makes the logits reachable for all.
  static Result<std::unique_ptr<Ranks>> make(const Graph& graph, const Split& split,
                                             const PlanOptions& options,
                                             std::span<const RankPlace> places,
                                             std::vector<ArenaSources> sources = {},
                                             const GpuPlatform* gpus = nullptr);

  // The same without a model: only an exchange arena of `exchange_bytes` each. For measurements.
  static Result<std::unique_ptr<Ranks>> make_bare(std::span<const RankPlace> places,
                                                  size_t exchange_bytes);

  size_t count() const { return ranks_.size(); }
  Rank& operator[](size_t rank) { return *ranks_[rank]; }
  const Rank& operator[](size_t rank) const { return *ranks_[rank]; }
  // Some are GPUs and others are not.
  bool is_mixed() const;
  // All are GPUs, several, and each reaches the others' memory.
  bool shares_gpu_memory() const { return reached_.has_value(); }
  // Not in the memory of rank 0's GPU: ranks are processors, or do not reach it.
  bool logits_on_host() const;
  const Plan& root_plan() const { return ranks_.front()->plan(); }  // where the logits lie
  // What has become of a pass that every rank has left with one of these: a failure is that of a
  // rank's own rather than of one that has waited for it.
  Result<void> outcome(std::span<const Result<void>> results) const;

 private:
  Ranks() = default;

  Result<void> start(std::span<const RankPlace> places, const GpuPlatform* gpus = nullptr);
  // One source per rank.
  Result<void> allocate(std::span<const Plan> sizes, std::span<ArenaSources> sources);
  // The ranks where all are GPUs, and several; else none.
  std::vector<GpuRank*> linked_gpus() const;
  Result<void> connect_gpus(const Plan& sizes);
  // Between that and the plans: which sums take one shot, where there is anything to choose.
  Result<void> choose_shots(const Plan& sizes);
  // Once all have their plans.
  Result<void> exchange_first();
  // By each rank's own thread, all of which are GPUs: they wait for one another.
  Result<void> run_on_gpus(const std::function<Result<void>(size_t rank)>& job);
  Result<void> allocate_on_node(std::span<const size_t> ranks, std::span<const Plan> sizes,
                                std::span<ArenaSources> sources);

  std::unique_ptr<RankLinks> links_;  // none for one rank
  std::vector<std::unique_ptr<Rank>> ranks_;
  Result<void> reached_ = machine_refused("no GPUs are to reach one another");
  std::unique_ptr<NcclRanks> nccl_;  // of GPUs; none where they do not need it
};

}  // namespace lockstep
