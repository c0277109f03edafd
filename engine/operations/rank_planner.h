// One rank's plan in the making: what the planning of operations asks for, and where it puts their
// steps. make_plan() begins and ends a plan; in between the operations' rows plan a group each.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "engine/base/range.h"
#include "engine/graph/graph.h"
#include "engine/graph/split.h"
#include "engine/graph/step_buffers.h"
#include "engine/operations/plan.h"
#include "engine/operations/plan_target.h"
#include "engine/operations/steps.h"
#include "engine/operations/value_buffers.h"

namespace lockstep {

class RankPlanner {
 public:
  // All must outlive this.
  RankPlanner(const Graph& graph, const Split& split, size_t rank, const PlanOptions& options)
      : graph_(graph),
        split_(split),
        rank_(rank),
        options_(options),
        values_(graph, split, options) {}
  RankPlanner(const RankPlanner&) = delete;
  RankPlanner& operator=(const RankPlanner&) = delete;

  const Graph& graph() const { return graph_; }
  const Split& split() const { return split_; }
  size_t rank() const { return rank_; }
  const PlanOptions& options() const { return options_; }
  const PlanTarget& target() const { return *options_.target; }
  Plan& plan() { return plan_; }
  ValueBuffers& values() { return values_; }
  // Areas of the step at hand alone.
  StepAreas& step_areas() { return step_areas_; }

  // This rank's part of a weight; of a vector nothing where it has none.
  PlannedMatrix matrix(WeightId weight) const;
  ArenaOffset<const float> vector(WeightId weight) const;
  // Columns of the value that this rank computes.
  Range own_columns(ValueId value) const;
  // These columns of a value, wherever this rank has them in f32.
  PlainRows operand(ValueId value, Range columns);

  // Whether this rank has a part of the node's step; under kLayers one rank alone has.
  bool computes(size_t node) const { return split_.owners.empty() || split_.owners[node] == rank_; }

  // Before the steps: what one layer after the other uses.
  void place_routing();
  void place_rotary_tables();
  // Likewise: from pass to pass nothing else may lie where a state does.
  void place_states();
  // Likewise: the residual of another rank, in one place on all of them.
  void place_handed_rows();
  // The step of a border, and behind it what else is read of the residual.
  void emit_hand_over(const LayerBorder& border);
  // A node's state: [slot][row of its StateShape].
  const Stretch& state(ValueId output) const { return states_.at(output); }
  // The step that copies states from slot to slot, of a graph that has some: before all others.
  void emit_state_copies();
  // By number in the graph.
  const RotaryTable& rotary_table(size_t number) const { return rotary_tables_[number]; }
  Routing routing_of(ValueId routing) const;
  // That of a value which has rows of experts; none of another.
  Routing routing_behind(ValueId value) const;

  // In f32 where anything but products reads it, and in the forms in which products do.
  PlainOutput place_output(ValueId value);
  // The arena of a value's own columns in f32.
  Arena plain_arena(ValueId value) const;
  // Every rank writes its part of the logits where they are wanted: to rank 0. Returns its place.
  ArenaOffset<float> place_logits();
  // The barrier behind the step that writes them.
  Meet meet_behind_logits() const { return split_.is_by_layers() ? Meet::kRank : Meet::kAllRanks; }

  // Behind all steps: the places of kept values.
  void note_kept_rows();

  void emit(StepWork work, Meet meet = Meet::kRank);
  // The barrier behind a step that writes `output`, of this value.
  Meet meet_behind(ValueId value, const PlainOutput& output) const;
  // The step of one node alone, which reads its inputs and writes its output.
  template <typename NodeStep>
  void emit_node(const GraphNode& node, NodeStep step) {
    for (const ValueId input : node.inputs) values_.consume(input);
    const Meet meet = meet_behind(node.output, step.output);
    emit(std::move(step), meet);
  }
  // Behind a step that has left a value's own columns in f32: what else is read of it.
  void emit_forms(ValueId value);
  // The same of a value whose forms are written: whole rows in f32.
  void emit_whole(ValueId value);

 private:
  void emit_form_step(ValueId value, const FormsOutput& output);

  const Graph& graph_;
  const Split& split_;
  const size_t rank_;
  const PlanOptions& options_;
  ValueBuffers values_;
  StepAreas step_areas_{values_.activations()};
  std::map<ValueId, Stretch> states_;  // by output
  Stretch handed_rows_;                // of a residual
  CopyStatesStep state_copies_;
  std::vector<RotaryTable> rotary_tables_;  // by number in the graph
  Routing routing_;
  Plan plan_;
};

}  // namespace lockstep
