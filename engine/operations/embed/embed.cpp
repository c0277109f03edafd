// Every rank looks up the tokens whose rows it holds, and pushes them to the others. Rows that the
// batch brings with tokens every rank copies by itself.
#include "engine/operations/operation_table.h"
#include "engine/operations/rank_planner.h"

namespace lockstep {
namespace {

// Tokens of other ranks' rows come from these: the value is whole on every rank behind the barrier.
// A rank that has all rows may be the only one to read it.
void plan_embedding(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  const bool is_shared = !planner.split().is_by_layers();
  const Stretch rows =
      planner.values().place_plain(node.output, is_shared ? Arena::kExchange : Arena::kScratch,
                                   {0, planner.graph().columns(node.output)});
  planner.emit(EmbedStep{.index = node.index,
                         .table = planner.matrix(node.weight),
                         .row_begin = planner.plan().weights[node.weight].row_begin,
                         .output = rows.at<float>(),
                         .output_stride = rows.floats(),
                         .gather = is_shared},
               is_shared ? Meet::kAllRanks : Meet::kRank);
  planner.emit_forms(node.output);
}

void plan_given_rows(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  planner.emit_node(node, GivenRowsStep{.columns = planner.own_columns(node.output).size(),
                                        .output = planner.place_output(node.output)});
}

}  // namespace

const OperationRow kEmbedRow = {.operation = Operation::kEmbed,
                                .name = "embedding",
                                .split = SplitRule::kVocabulary,
                                .cost = Cost::kTableRows,
                                .plan = plan_embedding,
                                .leaves_forms = true,
                                .has_gpu_step = true};

const OperationRow kGivenRowsRow = {.operation = Operation::kGivenRows,
                                    .name = "rows that are given with tokens",
                                    .split = SplitRule::kMirrored,
                                    .plan = plan_given_rows,
                                    .has_gpu_step = true};

}  // namespace lockstep
