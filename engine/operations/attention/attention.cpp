// Attention, with the norms and rotary positions that its group treats heads with.
#include <algorithm>
#include <optional>
#include <ranges>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/graph/kv_layout.h"
#include "engine/operations/operation_table.h"
#include "engine/operations/rank_planner.h"

namespace lockstep {
namespace {

Range scaled(Range heads, size_t dimension) {
  return {heads.begin * dimension, heads.end * dimension};
}

// The norms and rotary positions among the group's nodes, of queries and keys alike.
PrepareHeads prepare_heads(RankPlanner& planner, const Group& group, const GraphNode& node,
                           Range kv_heads) {
  PrepareHeads prepare;
  if (node.stored_by == kNone) {
    const PlainRows keys = planner.operand(node.inputs[1], scaled(kv_heads, node.head_dimension));
    prepare.keys = keys.rows;
    prepare.key_stride = keys.stride;
  }
  if (node.stored_by == kNone && !has_values_in_keys(node)) {
    const PlainRows values =
        planner.operand(node.inputs[2], scaled(kv_heads, node.value_dimension));
    prepare.values = values.rows;
    prepare.value_stride = values.stride;
  }
  const auto is_member = [&](ValueId value) {
    return std::ranges::binary_search(group.nodes, value);
  };
  for (const ValueId treated : node.inputs | std::views::take(2)) {
    bool has_norm = false;  // behind the node at hand
    for (ValueId value = treated; is_member(value);
         value = planner.graph().producer(value).inputs[0]) {
      const GraphNode& treatment = planner.graph().producer(value);
      if (treatment.operation == Operation::kRotary) {
        prepare.norm_is_last = has_norm;
        prepare.pairs = planner.graph().rotaries()[treatment.rotary].pairs;
        prepare.rotary = planner.rotary_table(treatment.rotary);
      } else {
        has_norm = true;
        (treated == node.inputs[0] ? prepare.query_norm : prepare.key_norm) =
            planner.vector(treatment.weight);
        prepare.epsilon = treatment.epsilon;
      }
    }
  }
  return prepare;
}

// The slopes of query heads, by their numbers in the whole model, so that all ranks agree.
std::vector<float> slopes_of(const GraphNode& node, Range heads) {
  std::vector<float> slopes;
  const float bias = node.attention.alibi_bias;
  if (bias == 0) return slopes;
  for (size_t head = heads.begin; head < heads.end; ++head) {
    slopes.push_back(alibi_slope(head, node.head_count, bias));
  }
  return slopes;
}

void plan_attention(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  for (const size_t treatment : group.nodes) {
    if (treatment != group.lead)
      planner.values().share(treatment, planner.graph().nodes()[treatment].inputs[0]);
  }
  const Buffer queries = planner.values().of(node.inputs[0]);
  const GraphNode& stored =
      node.stored_by == kNone ? node : planner.graph().producer(node.stored_by);
  const Range kv_heads = stored_heads(planner.graph(), planner.split(), planner.rank(), stored);
  const size_t dimension = node.head_dimension;
  const size_t value_dimension = node.value_dimension;
  const size_t queries_each = node.head_count / node.kv_head_count;
  const Range own = planner.own_columns(node.output);
  const Stretch output = planner.values().place_plain(node.output, Arena::kScratch, own);
  const FormsOutput forms = planner.values().place_forms(node.output, own);
  const bool in_blocks = !forms.forms[ActivationForm::kQ8].is_read() ||
                         value_dimension * queries_each % kQ8BlockElements == 0;
  const Meet meet = forms.gather ? Meet::kAllRanks : Meet::kRank;
  const Range heads = {own.begin / value_dimension, own.end / value_dimension};
  AttendStep step{
      .layer = node.layer,
      .prepare = prepare_heads(planner, group, node, kv_heads),
      .queries = queries.plain->at<float>(),
      .query_stride = queries.plain->floats(),
      .head_count = heads.size(),
      .kv_head_count = kv_heads.size(),
      .group = queries_each,
      .group_offset = heads.begin - kv_heads.begin * queries_each,
      .head_dimension = dimension,
      .value_dimension = value_dimension,
      .window = node.attention.window,
      .scale = node.attention.scale,
      .section = node.attention.section,
      .ahead = node.attention.ahead,
      .score_cap = node.attention.score_cap,
      .slopes = slopes_of(node, heads),
      .sinks = planner.vector(node.attention.sinks),
      .prompt_attention = planner.options().prompt_attention,
      .output = output.at<float>(),
      .output_stride = output.floats(),
      .leaves_output = !in_blocks || planner.values().is_read_plain(node.output) ||
                       planner.split().values[node.output].whole,
      .forms = in_blocks ? std::optional(forms) : std::nullopt,
  };
  for (const ValueId input : node.inputs) planner.values().consume(input);
  planner.emit(std::move(step), in_blocks ? meet : Meet::kRank);
  if (!in_blocks) {
    planner.emit(FormStep{.input = output.at<float>(),
                          .input_stride = output.floats(),
                          .columns = own.size(),
                          .output = forms},
                 meet);
  }
  planner.emit_whole(node.output);
}

// Names the first trait that the attention of GPUs lacks.
std::optional<std::string_view> attention_gap(const GroupParts&, const GraphNode& node) {
  if (has_values_in_keys(node)) return "attention with values in its keys";
  return std::nullopt;
}

}  // namespace

const OperationRow kAttentionRow = {.operation = Operation::kAttention,
                                    .name = "attention",
                                    .split = SplitRule::kFirstInput,
                                    .cost = Cost::kCache,
                                    .plan = plan_attention,
                                    .leaves_forms = true,
                                    .has_gpu_step = true,
                                    .gpu_gap = attention_gap};

}  // namespace lockstep
