#include "engine/graph/planner.h"

#include <algorithm>
#include <array>
#include <optional>
#include <ranges>
#include <utility>

#include "engine/base/check.h"
#include "engine/graph/rank_planner.h"
#include "engine/graph/weight_placement.h"

namespace lockstep {

PlannedMatrix RankPlanner::matrix(WeightId weight) const {
  const WeightSlice& slice = plan_.weights[weight];
  if (slice.size_bytes == 0) return {.format = graph_.weights()[weight].format};
  return {graph_.weights()[weight].format,
          slice.row_end - slice.row_begin,
          slice.column_end - slice.column_begin,
          {Arena::kWeights, slice.offset},
          graph_.weights()[weight].scale};
}

ArenaOffset<const float> RankPlanner::vector(WeightId weight) const {
  if (weight == kNone || plan_.weights[weight].size_bytes == 0) return {};
  return {Arena::kWeights, plan_.weights[weight].offset};
}

Range RankPlanner::own_columns(ValueId value) const {
  const ValueSplit& split = split_.values[value];
  // Logits that all ranks have are the first one's.
  if (split.kind == SplitKind::kMirrored && value == graph_.logits() && rank_ != 0) return {};
  if (split.kind != SplitKind::kSliced) return {0, graph_.columns(value)};
  return split.columns[rank_];
}

void RankPlanner::emit_step(StepWork work, Meet meet) {
  plan_.steps.push_back({std::move(work), meet});
  if (meet == Meet::kAllRanks) values_.activations().all_ranks_met();
}

void RankPlanner::emit_rotary_tables() {
  for (const Rotary& rotary : graph_.rotaries()) {
    const size_t pairs = rotary.frequencies.size();
    if (pairs == 0) {
      rotary_tables_.emplace_back();
      continue;
    }
    const Stretch rows =
        values_.activations().allocate_f32(Arena::kScratch, 2 * pairs, options_.batch_tokens);
    rotary_tables_.push_back({rows.at<float>(), rows.floats(), 2 * pairs});
    emit_step(RotaryTableStep{.frequencies = rotary.frequencies,
                              .magnitude = rotary.magnitude,
                              .table = rows.at<float>(),
                              .stride = rows.floats()});
  }
}

void RankPlanner::emit_embed(const GraphNode& node) {
  const Stretch rows =
      values_.place_plain(node.output, Arena::kExchange, {0, graph_.columns(node.output)});
  emit_step(EmbedStep{.index = node.index,
                      .table = matrix(node.weight),
                      .row_begin = plan_.weights[node.weight].row_begin,
                      .output = rows.at<float>(),
                      .output_stride = rows.floats(),
                      .gather = true},
            Meet::kAllRanks);
  emit_forms(node.output);
}

// Places what a norm makes of its residual's own columns.
NormOutput RankPlanner::make_norm(const GraphNode& node) {
  const ValueId residual = node.inputs[0];
  const Range own = own_columns(residual);
  NormOutput norm;
  norm.rows = graph_.rows(residual);
  norm.weight = vector(node.weight) + own.begin;
  norm.output = values_.place_forms(node.output, own);
  norm.chunks = values_.place_chunk_sums(node.output, graph_.columns(residual), node.epsilon);
  norm.chunks.sums = norm.chunks.sums + own.begin / kChunkColumns;
  note_hidden_rows(node);
  values_.consume(residual);
  return norm;
}

// Notes it of the norm that is multiplied to logits. Rank 0 hands out what every rank has in full.
void RankPlanner::note_hidden_rows(const GraphNode& norm) {
  const auto kept = hidden_residual(graph_);
  if (!kept || graph_.nodes()[*logits_product(graph_)].inputs[0] != norm.output) return;
  const ValueId residual = *kept;
  const Buffer& buffer = values_.of(residual);
  const bool is_sliced = split_.values[residual].kind == SplitKind::kSliced;
  const Range own = own_columns(residual);
  plan_.hidden = {.residual = buffer.plain->at<float>(own.begin - buffer.held.begin),
                  .residual_stride = buffer.plain->floats(),
                  .columns = is_sliced || rank_ == 0 ? own : Range{},
                  .norm_weight = vector(norm.weight) + own.begin,
                  .width = graph_.columns(residual),
                  .epsilon = norm.epsilon};
}

void RankPlanner::emit_norm(const Group& group) {
  const GraphNode& node = graph_.nodes()[group.lead];
  if (!is_norm_factored(graph_, values_.readers(node.output), group.lead)) {
    return emit_whole_norm(node);
  }
  const auto selection = node_of(graph_, group, Operation::kSelectRows);
  if (selection) values_.share(*selection, graph_.nodes()[*selection].inputs[0]);
  const ValueId residual = node.inputs[0];
  const Range own = own_columns(residual);
  const PlainRows rows = operand(residual, own);
  NormStep step{.residual = rows.rows,
                .residual_stride = rows.stride,
                .columns = own.size(),
                .residual_rows = selection ? Rows::kTokens : graph_.rows(residual),
                .norm = make_norm(node)};
  const Meet meet = step.norm.output.gather ? Meet::kAllRanks : Meet::kRank;
  emit_step(std::move(step), meet);
}

// The norms that read a residual which a product has just added to: of all rows, or of those whose
// logits are asked for.
ResidualFinish RankPlanner::fuse_norms(const Group& group) {
  ResidualFinish finish;
  for (const size_t index : group.nodes) {
    const GraphNode& node = graph_.nodes()[index];
    if (node.operation == Operation::kRmsNorm) finish.norms.push_back(make_norm(node));
    if (node.operation == Operation::kSelectRows) values_.share(node.output, node.inputs[0]);
  }
  return finish;
}

// Taken for the sum alone: the barrier of all ranks after it frees them.
void RankPlanner::place_bf16_sums(ValueId value, AllReduceStep& sum) {
  for (ArenaOffset<uint16_t>* area : {&sum.bf16_partial, &sum.bf16_sum}) {
    *area = step_areas_.take_f32(Arena::kExchange, (sum.columns + 1) / 2, values_.row_count(value))
                .at<uint16_t>();
  }
}

// Adds the sum over the ranks that have a part of the product's input.
void RankPlanner::add_reduction(ValueId product, const Stretch& sums, const Stretch& partial) {
  const std::vector<Range>& parts = split_.values[graph_.producer(product).inputs[0]].columns;
  std::vector<size_t> contributors;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (!parts[rank].empty()) contributors.push_back(rank);
  }
  reductions_.push_back({.contributors = std::move(contributors),
                         .rows = graph_.rows(product),
                         .partial = partial.at<float>(),
                         .partial_stride = partial.floats(),
                         .output = sums.at<float>(),
                         .output_stride = sums.floats(),
                         .columns = graph_.columns(product)});
  if (options_.bf16_sums) place_bf16_sums(product, reductions_.back());
}

// The product and the addition that is its only use: into the other operand's rows.
ResidualPlace RankPlanner::add_to_residual(const Group& group, const GraphNode& node,
                                           const GraphNode& sum) {
  const ValueId residual = sum.inputs[0] == node.output ? sum.inputs[1] : sum.inputs[0];
  CHECK(values_.is_placed(residual) && values_.of(residual).references == 1,
        "the residual of value {} is still in use", node.output);
  if (becomes_one_ranks(residual, sum.output)) {
    move_residual(residual, sum.output);
  } else {
    values_.share(sum.output, residual);
  }
  finished_.push_back(sum.output);
  const Buffer& buffer = values_.of(sum.output);
  const Stretch sums = *buffer.plain;
  if (split_.values[node.output].kind == SplitKind::kPartial) {
    meet_ = Meet::kAllRanks;
    const Stretch partial =
        values_.place_plain(node.output, Arena::kExchange, {0, graph_.columns(node.output)});
    partial_values_.push_back(node.output);
    add_reduction(node.output, sums, partial);
    return {partial.at<float>(), partial.floats(), false, std::nullopt};
  }
  const ArenaOffset<float> rows =
      sums.at<float>(own_columns(node.output).begin - buffer.held.begin);
  ResidualFinish finish = fuse_norms(group);
  const auto is_pushed = [](const NormOutput& norm) { return norm.output.gather; };
  if (std::ranges::any_of(finish.norms, is_pushed)) meet_ = Meet::kAllRanks;
  if (own_columns(sum.output).empty()) finish.norms.clear();
  return {rows, sums.floats(), true, std::move(finish)};
}

// Every rank had the residual, and from this sum on one alone has it.
bool RankPlanner::becomes_one_ranks(ValueId residual, ValueId sum) const {
  return split_.strategy == Strategy::kReduce &&
         split_.values[residual].kind == SplitKind::kMirrored &&
         split_.values[sum].kind == SplitKind::kSliced;
}

// Out of the exchange arena, which a GPU among processors has in the host's memory.
void RankPlanner::move_residual(ValueId residual, ValueId sum) {
  const Buffer from = values_.of(residual);
  const Range own = own_columns(sum);
  const Stretch to = values_.place_plain(sum, Arena::kScratch, own);
  Forms rows;
  rows.columns = own.size();
  rows[ActivationForm::kF32] = {to.at<std::byte>(), to.stride_bytes, /*prompted=*/true,
                                /*generated=*/true};
  emit_step(FormStep{.input = from.plain->at<float>(own.begin),
                     .input_stride = from.plain->floats(),
                     .columns = own.size(),
                     .output = {.forms = rows}});
  values_.consume(residual);
}

// Every rank writes its part of the logits where they are wanted: to rank 0. Returns its place.
ArenaOffset<float> RankPlanner::place_logits() {
  const ValueId logits = graph_.logits();
  plan_.vocabulary_size = graph_.columns(logits);
  plan_.logits_stride = activation_stride(plan_.vocabulary_size);
  plan_.logits = {Arena::kLogits, 0};
  const size_t rows = values_.row_count(logits);
  if (rank_ == 0) plan_.logits_bytes = rows * plan_.logits_stride * sizeof(float);
  return plan_.logits + own_columns(logits).begin;
}

void RankPlanner::add_part(const Group& group, const GraphNode& node, MatmulStep& step) {
  MatmulPart part;
  part.matrix = matrix(node.weight);
  part.forms = options_.forms[static_cast<size_t>(part.matrix.format)];
  part.bias = vector(node.bias);
  const auto use = [&](const ResidualPlace& place) {
    part.output = place.rows;
    part.output_stride = place.stride;
    part.accumulate = place.accumulate;
    if (place.finish) step.finish = *place.finish;
  };
  if (const auto sum = node_of(graph_, group, Operation::kAdd)) {
    use(add_to_residual(group, node, graph_.nodes()[*sum]));
  } else if (node.output == graph_.logits()) {
    part.output = place_logits();
    part.output_stride = plan_.logits_stride;
    part.remote = rank_ != 0;
    meet_ = Meet::kAllRanks;
  } else if (split_.values[node.output].kind == SplitKind::kPartial) {
    use(place_partial(node.output));
  } else {
    finished_.push_back(node.output);
    const Stretch rows =
        values_.place_plain(node.output, Arena::kScratch, own_columns(node.output));
    part.output = rows.at<float>();
    part.output_stride = rows.floats();
  }
  if (part.matrix.rows > 0) step.parts.push_back(part);
}

// Places the activation of both products, or of one.
GateFinish RankPlanner::fuse_gate(const GraphNode& activation, MatmulStep& step) {
  // The gate comes first, whichever the graph computes first.
  const bool is_swapped = activation.inputs.back() < activation.inputs.front();
  if (is_swapped && step.parts.size() == 2) std::swap(step.parts[0], step.parts[1]);
  GateFinish finish{.activation = activation.activation, .output = {}};
  finish.output = values_.place_forms(activation.output, own_columns(activation.output));
  if (finish.output.gather) meet_ = Meet::kAllRanks;
  for (const ValueId product : activation.inputs) values_.consume(product);
  finished_.clear();
  return finish;
}

// The products of one input, and what follows on them.
void RankPlanner::emit_matmuls(const Group& group) {
  const ValueId input = graph_.nodes()[group.lead].inputs[0];
  MatmulStep step;
  step.rows = graph_.rows(input);
  step.input = values_.forms(input);
  step.norm = values_.of(input).norm;
  begin_product();
  const std::vector<size_t> products = nodes_of(graph_, group, Operation::kMatmul);
  for (const size_t product : products) add_part(group, graph_.nodes()[product], step);
  for (const Operation operation : {Operation::kGate, Operation::kActivation}) {
    if (const auto activation = node_of(graph_, group, operation)) {
      step.finish = fuse_gate(graph_.nodes()[*activation], step);
    }
  }
  for (size_t count = 0; count < products.size(); ++count) values_.consume(input);
  emit_product(std::move(step));
}

void RankPlanner::begin_product() {
  meet_ = Meet::kRank;
  reductions_.clear();
  partial_values_.clear();
  finished_.clear();
}

// And what its partial results are summed by, and the forms of what it leaves in f32.
void RankPlanner::emit_product(StepWork work) {
  emit_step(std::move(work), meet_);
  for (const ValueId partial : partial_values_) values_.consume(partial);
  step_areas_.release();
  for (const AllReduceStep& reduction : reductions_) emit_step(reduction, Meet::kAllRanks);
  for (const ValueId value : finished_) emit_forms(value);
}

// The norms and rotary positions among the group's nodes, of queries and keys alike.
PrepareHeads RankPlanner::prepare_heads(const Group& group, const GraphNode& node) {
  PrepareHeads prepare;
  if (node.stored_by == kNone) {
    const Stretch keys = *values_.of(node.inputs[1]).plain;
    prepare.keys = keys.at<float>();
    prepare.key_stride = keys.floats();
  }
  if (node.stored_by == kNone && !has_values_in_keys(node)) {
    const Stretch values = *values_.of(node.inputs[2]).plain;
    prepare.values = values.at<float>();
    prepare.value_stride = values.floats();
  }
  const auto is_member = [&](ValueId value) {
    return std::ranges::binary_search(group.nodes, value);
  };
  for (const ValueId treated : node.inputs | std::views::take(2)) {
    bool has_norm = false;  // behind the node at hand
    for (ValueId value = treated; is_member(value); value = graph_.producer(value).inputs[0]) {
      const GraphNode& treatment = graph_.producer(value);
      if (treatment.operation == Operation::kRotary) {
        prepare.norm_is_last = has_norm;
        prepare.pairs = graph_.rotaries()[treatment.rotary].pairs;
        prepare.rotary = rotary_tables_[treatment.rotary];
      } else {
        has_norm = true;
        (treated == node.inputs[0] ? prepare.query_norm : prepare.key_norm) =
            vector(treatment.weight);
        prepare.epsilon = treatment.epsilon;
      }
    }
  }
  return prepare;
}

// The slopes of query heads, by their numbers in the whole model, so that all ranks agree.
std::vector<float> RankPlanner::slopes_of(const GraphNode& node, Range heads) {
  std::vector<float> slopes;
  const float bias = node.attention.alibi_bias;
  if (bias == 0) return slopes;
  for (size_t head = heads.begin; head < heads.end; ++head) {
    slopes.push_back(alibi_slope(head, node.head_count, bias));
  }
  return slopes;
}

void RankPlanner::emit_attend(const Group& group) {
  const GraphNode& node = graph_.nodes()[group.lead];
  for (const size_t treatment : group.nodes) {
    if (treatment != group.lead) values_.share(treatment, graph_.nodes()[treatment].inputs[0]);
  }
  const Buffer queries = values_.of(node.inputs[0]);
  const GraphNode& stored = node.stored_by == kNone ? node : graph_.producer(node.stored_by);
  const Range keys = own_columns(stored.inputs[1]);
  const size_t dimension = node.head_dimension;
  const size_t value_dimension = node.value_dimension;
  const size_t queries_each = node.head_count / node.kv_head_count;
  const Range own = own_columns(node.output);
  const Stretch output = values_.place_plain(node.output, Arena::kScratch, own);
  const FormsOutput forms = values_.place_forms(node.output, own);
  const bool in_blocks = !forms.forms[ActivationForm::kQ8].is_read() ||
                         value_dimension * queries_each % kQ8BlockElements == 0;
  const Meet meet = forms.gather ? Meet::kAllRanks : Meet::kRank;
  const Range heads = {own.begin / value_dimension, own.end / value_dimension};
  AttendStep step{
      .layer = node.layer,
      .prepare = prepare_heads(group, node),
      .queries = queries.plain->at<float>(),
      .query_stride = queries.plain->floats(),
      .head_count = heads.size(),
      .kv_head_count = keys.size() / dimension,
      .group = queries_each,
      .group_offset = heads.begin - keys.begin / dimension * queries_each,
      .head_dimension = dimension,
      .value_dimension = value_dimension,
      .window = node.attention.window,
      .scale = node.attention.scale,
      .section = node.attention.section,
      .ahead = node.attention.ahead,
      .score_cap = node.attention.score_cap,
      .slopes = slopes_of(node, heads),
      .sinks = vector(node.attention.sinks),
      .prompt_attention = options_.prompt_attention,
      .output = output.at<float>(),
      .output_stride = output.floats(),
      .forms = in_blocks ? std::optional(forms) : std::nullopt,
  };
  for (const ValueId input : node.inputs) values_.consume(input);
  emit_step(std::move(step), in_blocks ? meet : Meet::kRank);
  if (!in_blocks) {
    emit_step(FormStep{.input = output.at<float>(),
                       .input_stride = output.floats(),
                       .columns = own.size(),
                       .output = forms},
              meet);
  }
  emit_whole(node.output);
}

void RankPlanner::emit(const Group& group) {
  const GraphNode& node = graph_.nodes()[group.lead];
  switch (node.operation) {
    case Operation::kEmbed:
      return emit_embed(node);
    case Operation::kRmsNorm:
      return emit_norm(group);
    case Operation::kMatmul:
      return emit_matmuls(group);
    case Operation::kAttention:
      return emit_attend(group);
    case Operation::kHeadNorm:
    case Operation::kRotary:
      return emit_heads(node);
    case Operation::kHeadMatmul:
      return emit_head_products(node);
    case Operation::kSliceHeads:
    case Operation::kJoinHeads:
      return emit_heads_copy(node);
    case Operation::kSelectRows:
      return emit_elementwise(node, Elementwise::kSelect);
    case Operation::kRoute:
      return emit_route(node);
    case Operation::kExpertMatmul:
      return group.nodes.size() > 1 ? emit_expert_gate(group) : emit_expert_product(node);
    case Operation::kExpertSum:
      return emit_expert_sum(group);
    case Operation::kLayerNorm:
      return emit_whole_norm(node);
    case Operation::kActivation:
      return emit_elementwise(node, Elementwise::kActivation);
    case Operation::kGate:
      return emit_elementwise(node, Elementwise::kGate);
    case Operation::kScale:
      return emit_elementwise(node, Elementwise::kScale);
    case Operation::kSoftCap:
      return emit_elementwise(node, Elementwise::kSoftCap);
    case Operation::kClamp:
      return emit_elementwise(node, Elementwise::kClamp);
    case Operation::kScaleRows:
      return emit_elementwise(node, Elementwise::kScaleRows);
    case Operation::kTemperature:
      return emit_elementwise(node, Elementwise::kTemperature);
    case Operation::kAdd:
      // A sum that begins with the other operand has added both.
      if (!values_.is_placed(node.output)) emit_elementwise(node, Elementwise::kAdd);
  }
}

Plan RankPlanner::make() {
  plan_.rank = rank_;
  plan_.rank_count = split_.rank_count;
  plan_.batch_tokens = options_.batch_tokens;
  plan_.logit_rows = options_.logit_rows;
  plan_.weights = place_weights(graph_, split_, rank_, target_);
  plan_.weight_bytes = weight_arena_bytes(plan_.weights, target_);
  plan_.kv = place_kv(graph_, split_, rank_, options_.kv_format, options_.kv_pages);
  plan_.areas =
      target_.place_areas({graph_, split_, rank_, options_}, plan_.kv, values_.activations());
  place_routing();
  emit_step(ClearPagesStep{});
  emit_rotary_tables();
  if (const auto residual = hidden_residual(graph_)) values_.keep(*residual);
  for (const Group& group : make_groups(graph_, split_, options_.without_fusion)) emit(group);
  plan_.scratch_bytes = values_.activations().scratch_bytes();
  plan_.exchange_bytes = values_.activations().exchange_bytes();
  target_.place_last_areas(options_, plan_);
  return std::move(plan_);
}

Plan make_plan(const Graph& graph, const Split& split, size_t rank, const PlanOptions& options) {
  CHECK(graph.logits() != kNone, "the graph has no logits");
  CHECK(rank < split.rank_count, "rank {} of {}", rank, split.rank_count);
  return RankPlanner(graph, split, rank, options).make();
}

}  // namespace lockstep
