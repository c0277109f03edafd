// The planner at work on one rank: planner.cpp, planner_experts.cpp for mixtures of experts, and
// planner_plain.cpp for the steps of nodes that no fusion rule has taken.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/graph/fusion/groups.h"
#include "engine/graph/graph.h"
#include "engine/graph/plan.h"
#include "engine/graph/plan_target.h"
#include "engine/graph/split.h"
#include "engine/graph/value_buffers.h"

namespace lockstep {

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
        values_(graph, split, options) {}

  Plan make();

 private:
  PlannedMatrix matrix(WeightId weight) const;
  ArenaOffset<const float> vector(WeightId weight) const;

  // Columns of the value that this rank computes.
  Range own_columns(ValueId value) const;
  void emit_step(StepWork work, Meet meet = Meet::kRank);

  void emit(const Group& group);
  void emit_embed(const GraphNode& node);
  NormOutput make_norm(const GraphNode& node);
  void note_hidden_rows(const GraphNode& norm);
  void emit_norm(const Group& group);
  void emit_matmuls(const Group& group);
  void add_part(const Group& group, const GraphNode& node, MatmulStep& step);
  void begin_product();
  void emit_product(StepWork work);
  ResidualPlace add_to_residual(const Group& group, const GraphNode& node, const GraphNode& sum);
  bool becomes_one_ranks(ValueId residual, ValueId sum) const;
  void move_residual(ValueId residual, ValueId sum);
  ResidualFinish fuse_norms(const Group& group);
  void add_reduction(ValueId product, const Stretch& sums, const Stretch& partial);
  void place_bf16_sums(ValueId value, AllReduceStep& sum);
  ArenaOffset<float> place_logits();
  GateFinish fuse_gate(const GraphNode& activation, MatmulStep& step);
  PrepareHeads prepare_heads(const Group& group, const GraphNode& node);
  static std::vector<float> slopes_of(const GraphNode& node, Range heads);
  void emit_attend(const Group& group);
  void emit_rotary_tables();

  // planner_experts.cpp
  void emit_route(const GraphNode& node);
  void emit_expert_gate(const Group& group);
  void emit_expert_product(const GraphNode& node);
  void emit_expert_sum(const Group& group);
  void place_routing();
  Routing routing_of(ValueId routing) const;
  ExpertPart expert_part(const GraphNode& node) const;
  void place_expert_rows(const GraphNode& node, ExpertPart& part, bool fused);

  // planner_plain.cpp
  PlainRows operand(ValueId value, Range columns);
  Arena plain_arena(ValueId value) const;
  PlainOutput place_output(ValueId value);
  Routing routing_behind(ValueId value) const;
  void emit_form_step(ValueId value, const FormsOutput& output);
  void emit_forms(ValueId value);
  void emit_whole(ValueId value);
  void emit_elementwise(const GraphNode& node, Elementwise function);
  void emit_heads(const GraphNode& node);
  void emit_heads_copy(const GraphNode& node);
  void emit_head_products(const GraphNode& node);
  void emit_whole_norm(const GraphNode& node);
  ValueId begin_sum(ValueId sum, Arena arena, Range columns);
  ResidualPlace place_partial(ValueId product);
  ResidualPlace place_expert_sum(ValueId sum);

  const Graph& graph_;
  const Split& split_;
  const size_t rank_;
  const PlanOptions& options_;
  const PlanTarget& target_;
  ValueBuffers values_;
  std::vector<RotaryTable> rotary_tables_;  // by number in the graph
  Routing routing_;
  // The barrier of the product step at hand.
  Meet meet_ = Meet::kRank;
  std::vector<AllReduceStep> reductions_;
  std::vector<ValueId> partial_values_;
  std::vector<ValueId> finished_;  // in f32 after the step, without forms as yet
  StepAreas step_areas_{values_.activations()};
  Plan plan_;
};

}  // namespace lockstep
