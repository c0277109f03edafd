// The planner at work on one rank: planner.cpp, and planner_experts.cpp for mixtures of experts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/graph/plan.h"
#include "engine/graph/plan_target.h"
#include "engine/graph/split.h"
#include "engine/graph/value_buffers.h"

namespace lockstep {

// The treatment of a head before attention.
struct HeadTreatment {
  WeightId norm = kNone;
  float epsilon = 0;
  bool rotary = false;
  bool norm_is_last = false;
};

// The destination of a product that is added to a residual: the residual's rows or, for a partial
// result, rows of its own.
struct ResidualPlace {
  ArenaOffset<float> rows;
  size_t stride = 0;
  bool accumulate = false;
  std::optional<ResidualFinish> finish;  // none: partial results are summed first
};

// Makes one plan, once.
class RankPlanner {
 public:
  RankPlanner(const Graph& graph, const Split& split, size_t rank, const PlanOptions& options)
      : graph_(graph),
        split_(split),
        rank_(rank),
        options_(options),
        target_(*options.target),
        values_(graph, split, options),
        heads_(graph.value_count()),
        emitted_(graph.nodes().size()) {}

  Plan make();

 private:
  PlannedMatrix matrix(WeightId weight) const;
  ArenaOffset<const float> vector(WeightId weight) const;

  // Columns of the value that this rank computes.
  Range own_columns(ValueId value) const;
  void emit_step(StepWork work, Meet meet = Meet::kRank);

  void emit(size_t node_index);
  void emit_embed(const GraphNode& node);
  NormOutput make_norm(const GraphNode& node);
  bool feeds_logits(ValueId value) const;
  HiddenRows hidden_rows(const GraphNode& norm);
  void emit_norm(const GraphNode& node);
  void emit_matmuls(size_t node_index);
  void add_part(const GraphNode& node, MatmulStep& step);
  void begin_product();
  void emit_product(StepWork work);
  ResidualPlace add_to_residual(const GraphNode& node, const GraphNode& sum);
  bool becomes_one_ranks(ValueId residual, ValueId sum) const;
  void move_residual(ValueId residual, ValueId sum);
  ResidualFinish fuse_norms(ValueId residual);
  void add_reduction(ValueId product, const Stretch& sums, const Stretch& partial);
  void place_bf16_sums(ValueId value, AllReduceStep& sum);
  void place_logits(const GraphNode& node, MatmulPart& part);
  bool fuse_gate(MatmulStep& step, size_t node_index, GateFinish& finish);
  PrepareHeads prepare_heads(const GraphNode& node);
  void emit_attend(const GraphNode& node);
  void emit_route(const GraphNode& node);
  void emit_expert_gate(const GraphNode& node);
  void emit_expert_sum(const GraphNode& node);
  void place_routing();
  Routing routing_of(ValueId routing) const;
  ExpertPart expert_part(const GraphNode& node) const;
  void place_expert_rows(const GraphNode& node, ExpertPart& part, bool fused);
  const GraphNode& consumer_of(const GraphNode& node, Operation operation) const;
  void emit_rotary_table();
  std::optional<size_t> only_consumer(ValueId value) const {
    const ValueUses& uses = values_.uses(value);
    if (uses.count != 1 || uses.consumers.empty()) return std::nullopt;
    return uses.consumers.front();
  }

  const Graph& graph_;
  const Split& split_;
  const size_t rank_;
  const PlanOptions& options_;
  const PlanTarget& target_;
  ValueBuffers values_;
  std::vector<HeadTreatment> heads_;  // by value
  std::vector<bool> emitted_;         // by node
  ArenaOffset<const float> rotary_table_;
  size_t rotary_stride_ = 0;
  Routing routing_;
  // The barrier of the product step at hand.
  Meet meet_ = Meet::kRank;
  std::vector<AllReduceStep> reductions_;
  std::vector<ValueId> partial_values_;
  StepAreas step_areas_{values_.activations()};
  Plan plan_;
};

}  // namespace lockstep
