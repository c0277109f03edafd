// One place that computes: its arenas, its plan and its workers.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/graph/planner.h"
#include "engine/machine/node_memory.h"
#include "engine/machine/rank_places.h"
#include "engine/machine/workers.h"
#include "engine/runtime/gpu_rank.h"
#include "engine/runtime/task_counter.h"
#include "engine/runtime/worker_counters.h"

namespace lockstep {

// Which of a rank's arenas shall outlive the process, and which of an earlier one's it gets.
struct ArenaSources {
  bool keep = false;        // weights and KV cache lie in memfds, where that costs no huge pages
  bool keep_small = false;  // even if it costs huge pages
  bool lock = false;        // all that the rank holds on the host is locked in memory
  std::optional<KeptArena> weights;  // none: taken anew
  std::optional<KeptArena> kv;
};

class Rank {
 public:
  // Starts one worker per entry of `place.cpus`. `crowded`: other ranks' workers need the same
  // processors. `gpus`: through what a GPU is used; needed by a place on one, which has one worker.
  static Result<std::unique_ptr<Rank>> start(const RankPlace& place, bool crowded,
                                             const GpuPlatform* gpus = nullptr);

  // Takes the memory that the plan needs, on the rank's node, touched by its workers. A KV cache
  // that is taken over holds anything.
  // `host`: of a GPU's rank.
  Result<void> allocate(const Plan& sizes, ArenaSources sources = {}, const HostShare& host = {});
  ArenaAddresses arenas() const;

  // Once. A GPU's launches are made and recorded here.
  Result<void> set_plan(Plan plan);
  const Plan& plan() const { return plan_; }
  const RankPlace& place() const { return place_; }
  Workers& workers() { return *workers_; }
  // One per step of the plan.
  std::span<TaskCounter> task_counters() { return tasks_; }
  WorkerCounters& counters(size_t worker) { return counters_[worker]; }
  // What computes where it is not the workers: they drive it. Null on processors.
  GpuRank* gpu() const { return gpu_.get(); }

  const NodeMemory& weights() const { return weights_; }
  const NodeMemory& kv() const { return kv_; }
  // After the load, between passes: see NodeMemory::seal().
  Result<void> seal_weights() { return weights_.seal(workers_.get()); }
  // Weights, scratch, exchange, KV cache and logits; of a GPU's rank, what of them is the host's.
  std::vector<const NodeMemory*> all_memory() const;

 private:
  explicit Rank(const RankPlace& place) : place_(place), counters_(place.cpus.size()) {}

  RankPlace place_;
  std::vector<WorkerCounters> counters_;  // by worker
  NodeMemory weights_;
  NodeMemory scratch_;
  NodeMemory exchange_;
  NodeMemory kv_;
  NodeMemory logits_;  // empty but on rank 0, and where its GPU holds them
  Plan plan_;          // addresses lie in the arenas
  std::vector<TaskCounter> tasks_;
  std::unique_ptr<GpuRank> gpu_;
  std::unique_ptr<Workers> workers_;
};

}  // namespace lockstep
