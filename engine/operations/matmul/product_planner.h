// The planning of one step of products, of a mixture's experts or others: where its results go, how
// ranks' partial results are summed behind it, and which forms follow.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/graph/fusion/groups.h"
#include "engine/operations/matmul/matmul_step.h"
#include "engine/operations/rank_planner.h"

namespace lockstep {

// The destination of a product that is added to a residual: the residual's rows or, for a partial
// result, rows of its own.
struct ResidualPlace {
  ArenaOffset<float> rows;
  size_t stride = 0;
  bool accumulate = false;
  std::optional<ResidualFinish> finish;  // none: partial results are summed first
};

class ProductPlanner {
 public:
  explicit ProductPlanner(RankPlanner& planner) : planner_(planner) {}

  // The place of the product `node`, whose only use is the addition `sum`: the residual's rows.
  ResidualPlace add_to_residual(const Group& group, const GraphNode& node, const GraphNode& sum);
  // The place of a partial result that is summed by a step of its own.
  ResidualPlace place_partial(ValueId product);
  // The place of a sum of experts that no residual takes.
  ResidualPlace place_sum(ValueId sum);
  // The place of any other product: rows of its own.
  ResidualPlace place_rows(ValueId product);
  ResidualPlace place_logits();
  // The forms of a value that the step's results become; nothing else is left of them.
  FormsOutput place_finished(ValueId value);

  // The step, what its partial results are summed by, and the forms of what it leaves in f32.
  void emit(StepWork work);

 private:
  ResidualFinish fuse_norms(const Group& group);
  void add_reduction(ValueId product, const Stretch& sums, const Stretch& partial);
  void place_bf16_sums(ValueId value, AllReduceStep& sum);
  bool becomes_one_ranks(ValueId residual, ValueId sum) const;
  void move_residual(ValueId residual, ValueId sum);
  ValueId begin_sum(ValueId sum, Arena arena, Range columns);

  RankPlanner& planner_;
  Meet meet_ = Meet::kRank;  // behind the step
  std::vector<AllReduceStep> reductions_;
  std::vector<ValueId> partial_values_;
  std::vector<ValueId> finished_;  // in f32 after the step, without forms as yet
};

}  // namespace lockstep
