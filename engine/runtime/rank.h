// One place that computes: its arenas, its plan and its workers.
#pragma once

#include <memory>
#include <span>

#include "engine/base/result.h"
#include "engine/graph/planner.h"
#include "engine/machine/node_memory.h"
#include "engine/machine/workers.h"

namespace lockstep {

class Rank {
 public:
  // Takes the memory that the plan needs and starts one worker per entry of `cpus`. The graph must
  // outlive the rank. The weights are not loaded yet.
  static Result<std::unique_ptr<Rank>> make(const Graph& graph, const PlanOptions& options,
                                            std::span<const int> cpus);

  const Plan& plan() const { return plan_; }
  Workers& workers() { return *workers_; }

 private:
  Rank() = default;

  NodeMemory weights_;
  NodeMemory scratch_;
  NodeMemory kv_;
  Plan plan_;  // addresses lie in the arenas
  std::unique_ptr<Workers> workers_;
};

}  // namespace lockstep
