#include "engine/planner/planner.h"

#include <span>
#include <utility>

#include "engine/base/check.h"
#include "engine/operations/operation_table.h"
#include "engine/operations/rank_planner.h"
#include "engine/planner/weight_placement.h"

namespace lockstep {
namespace {

// Places all that stands before a plan's first operation.
void begin_plan(const PlanSubject& subject, RankPlanner& planner) {
  const PlanOptions& options = subject.options;
  const PlanTarget& target = planner.target();
  Plan& plan = planner.plan();
  plan.rank = subject.rank;
  plan.rank_count = subject.split.rank_count;
  plan.batch_tokens = options.batch_tokens;
  plan.chunk_tokens = options.tokens_at_once();
  plan.logit_rows = options.logit_rows;
  plan.given_columns = subject.graph.given_columns();
  plan.weights = place_weights(subject.graph, subject.split, subject.rank, target);
  plan.weight_bytes = weight_arena_bytes(plan.weights, target);
  plan.kv =
      place_kv(subject.graph, subject.split, subject.rank, options.kv_format, options.kv_pages);
  plan.areas = target.place_areas(subject, plan.kv, planner.values().activations());
  planner.place_handed_rows();
  planner.place_states();
  planner.place_routing();
  planner.emit(ClearPagesStep{});
  planner.emit_state_copies();
  planner.place_rotary_tables();
  if (const auto residual = hidden_residual(subject.graph)) planner.values().keep(*residual);
}

}  // namespace

Plan make_plan(const Graph& graph, const Split& split, size_t rank, const PlanOptions& options) {
  CHECK(graph.logits() != kNone, "the graph has no logits");
  CHECK(rank < split.rank_count, "rank {} of {}", rank, split.rank_count);
  RankPlanner planner(graph, split, rank, options);
  begin_plan({graph, split, rank, options}, planner);
  std::span<const LayerBorder> borders = split.borders;
  for (const Group& group : make_groups(graph, split, options.without_fusion)) {
    if (!borders.empty() && borders.front().node <= group.lead) {
      planner.emit_hand_over(borders.front());
      borders = borders.subspan(1);
    }
    if (!planner.computes(group.lead)) continue;
    row_of(graph.nodes()[group.lead].operation).plan(planner, group);
  }
  planner.note_kept_rows();
  Plan& plan = planner.plan();
  plan.scratch_bytes = planner.values().activations().scratch_bytes();
  plan.exchange_bytes = planner.values().activations().exchange_bytes();
  planner.target().place_last_areas(options, plan);
  return std::move(plan);
}

Plan make_first_plan(const Graph& graph, const Split& split, size_t rank,
                     const PlanOptions& options) {
  Plan plan = make_plan(graph, split, rank, options);
  plan.logits_bytes = plan.logit_rows * plan.logits_stride * sizeof(float);
  return plan;
}

}  // namespace lockstep
