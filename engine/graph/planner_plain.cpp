// The plain steps: of nodes that no fusion rule has made a part of another step.
#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/graph/rank_planner.h"
#include "engine/kernels/packed_matrix.h"

namespace lockstep {
namespace {

// Whole panels of a matrix in a node's memory.
PlannedMatrix rows_of(const PlannedMatrix& matrix, size_t first, size_t count) {
  PlannedMatrix rows = matrix;
  rows.rows = count;
  rows.data = matrix.data + first / kPanelRows * panel_bytes(matrix.format, matrix.columns);
  return rows;
}

}  // namespace

// These columns of a value, wherever this rank has them in f32.
PlainRows RankPlanner::operand(ValueId value, Range columns) {
  const Buffer& buffer = values_.of(value);
  const auto holds = [&](Range held) {
    return held.begin <= columns.begin && columns.end <= held.end;
  };
  if (buffer.plain && (columns.empty() || holds(buffer.held))) {
    const size_t first = columns.begin - std::min(columns.begin, buffer.held.begin);
    return {buffer.plain->at<float>(first), buffer.plain->floats()};
  }
  CHECK(buffer.whole, "columns {} to {} of value {} are not at hand", columns.begin, columns.end,
        value);
  return {buffer.whole->at<float>(columns.begin), buffer.whole->floats()};
}

// Sums of partial results are pushed into every rank's copy of a mirrored value.
Arena RankPlanner::plain_arena(ValueId value) const {
  const bool may_take_sums = split_.strategy == Strategy::kReduce && split_.rank_count > 1 &&
                             split_.values[value].kind != SplitKind::kSliced;
  return may_take_sums ? Arena::kExchange : Arena::kScratch;
}

// In f32 where anything but products reads it, and in the forms in which products do.
PlainOutput RankPlanner::place_output(ValueId value) {
  const Range own = own_columns(value);
  PlainOutput output;
  if (value == graph_.logits()) {
    output.rows = place_logits();
    output.stride = plan_.logits_stride;
  } else if (values_.is_read_plain(value)) {
    const Stretch rows = values_.place_plain(value, plain_arena(value), own);
    output.rows = rows.at<float>();
    output.stride = rows.floats();
  }
  if (values_.is_multiplied(value)) output.forms.push_back(values_.place_forms(value, own));
  if (split_.values[value].whole) output.forms.push_back(values_.place_whole(value, own));
  return output;
}

// The routing of a value that has rows of experts; none of another.
Routing RankPlanner::routing_behind(ValueId value) const {
  if (graph_.rows(value) != Rows::kExperts) return {};
  const GraphNode* node = &graph_.producer(value);
  while (node->operation != Operation::kExpertMatmul) node = &graph_.producer(node->inputs[0]);
  return routing_of(node->inputs[1]);
}

void RankPlanner::emit_form_step(ValueId value, const FormsOutput& output) {
  const Range own = own_columns(value);
  const PlainRows input = operand(value, own);
  emit_step(FormStep{.rows = graph_.rows(value),
                     .routing = routing_behind(value),
                     .input = input.rows,
                     .input_stride = input.stride,
                     .columns = own.size(),
                     .output = output},
            output.gather ? Meet::kAllRanks : Meet::kRank);
}

// Behind a step that has left a value's own columns in f32: what else is read of it.
void RankPlanner::emit_forms(ValueId value) {
  if (values_.is_multiplied(value)) {
    emit_form_step(value, values_.place_forms(value, own_columns(value)));
  }
  emit_whole(value);
}

void RankPlanner::emit_whole(ValueId value) {
  if (!split_.values[value].whole) return;
  emit_form_step(value, values_.place_whole(value, own_columns(value)));
}

void RankPlanner::emit_elementwise(const GraphNode& node, Elementwise function) {
  const Range own = own_columns(node.output);
  ElementwiseStep step{.function = function,
                       .rows = graph_.rows(node.output),
                       .routing = routing_behind(node.output),
                       .activation = node.activation,
                       .scale = node.scale,
                       .temperature = node.temperature,
                       .x = operand(node.inputs[0], own),
                       .y = {},
                       .columns = own.size(),
                       .output = place_output(node.output)};
  if (node.inputs.size() > 1) {
    const bool scales_rows = function == Elementwise::kScaleRows;
    step.y = operand(node.inputs[1], scales_rows && !own.empty() ? Range{0, 1} : own);
  }
  for (const ValueId input : node.inputs) values_.consume(input);
  const bool is_sent = step.output.is_gathered() || node.output == graph_.logits();
  emit_step(std::move(step), is_sent ? Meet::kAllRanks : Meet::kRank);
}

// A norm or rotary positions of each head.
void RankPlanner::emit_heads(const GraphNode& node) {
  CHECK(graph_.rows(node.output) == Rows::kTokens, "value {} has heads of other rows than tokens",
        node.output);
  const Range own = own_columns(node.output);
  const Stretch output = values_.place_plain(node.output, plain_arena(node.output), own);
  HeadsStep step{.input = operand(node.inputs[0], own),
                 .head_count = own.size() / node.head_dimension,
                 .head_dimension = node.head_dimension,
                 .is_normed = node.operation == Operation::kHeadNorm,
                 .subtracts_mean = node.subtracts_mean,
                 .norm = vector(node.weight),
                 .norm_stride = has_own_norms(graph_, node) ? node.head_dimension : 0,
                 .epsilon = node.epsilon,
                 .output = output.at<float>(),
                 .output_stride = output.floats()};
  if (node.operation == Operation::kRotary) {
    step.pairs = graph_.rotaries()[node.rotary].pairs;
    step.rotary = rotary_tables_[node.rotary];
  }
  values_.consume(node.inputs[0]);
  emit_step(std::move(step));
  emit_forms(node.output);
}

// A copy of some columns of each head, one operand's after another's.
void RankPlanner::emit_heads_copy(const GraphNode& node) {
  const Range own = own_columns(node.output);
  const size_t columns = graph_.columns(node.output) / node.head_count;
  const Range heads = {own.begin / columns, own.end / columns};
  CopyHeadsStep step{.rows = graph_.rows(node.output),
                     .routing = routing_behind(node.output),
                     .parts = {},
                     .columns = own.size(),
                     .output = place_output(node.output)};
  const auto add = [&](ValueId input, size_t head_count, Range copied) {
    const size_t head_columns = graph_.columns(input) / head_count;
    const bool is_shared = head_count == 1;
    const Range read = is_shared ? Range{0, heads.empty() ? 0 : head_columns}
                                 : Range{heads.begin * head_columns, heads.end * head_columns};
    step.parts.push_back({.input = operand(input, read),
                          .head_stride = is_shared ? 0 : head_columns,
                          .first = copied.begin,
                          .columns = copied.size()});
  };
  if (node.operation == Operation::kSliceHeads) {
    add(node.inputs[0], node.head_count, {node.first_column, node.first_column + columns});
  } else {
    add(node.inputs[0], node.head_count, {0, node.head_dimension});
    add(node.inputs[1], node.kv_head_count, {0, columns - node.head_dimension});
  }
  for (const ValueId input : node.inputs) values_.consume(input);
  const bool is_sent = step.output.is_gathered() || node.output == graph_.logits();
  emit_step(std::move(step), is_sent ? Meet::kAllRanks : Meet::kRank);
}

// A product for each head, which share one list of panels.
void RankPlanner::emit_head_products(const GraphNode& node) {
  const ValueId input = node.inputs[0];
  const size_t rows = graph_.columns(node.output) / node.head_count;
  const Range own = own_columns(node.output);
  const Forms forms = values_.forms(input);
  const size_t first_held = forms.columns == graph_.columns(input) ? 0 : own_columns(input).begin;
  const PlannedMatrix all = matrix(node.weight);
  begin_product();
  const Stretch output = values_.place_plain(node.output, Arena::kScratch, own);
  finished_.push_back(node.output);
  MatmulStep step{.rows = graph_.rows(input),
                  .input = forms,
                  .norm = values_.of(input).norm,
                  .parts = {},
                  .finish = {}};
  for (size_t row = own.begin; row < own.end; row += rows) {
    const size_t head = row / rows;
    step.parts.push_back({.matrix = rows_of(all, row - own.begin, rows),
                          .forms = options_.forms[static_cast<size_t>(all.format)],
                          .first_column = head * node.head_dimension - first_held,
                          .output = output.at<float>(row - own.begin),
                          .output_stride = output.floats()});
  }
  values_.consume(input);
  emit_product(std::move(step));
}

// The sums of the chunks cross ranks where each has computed its own, and are added in order.
void RankPlanner::emit_whole_norm(const GraphNode& node) {
  const ValueId input = node.inputs[0];
  const Range own = own_columns(node.output);
  const size_t columns = graph_.columns(input);
  const bool has_own =
      split_.values[input].kind == SplitKind::kSliced && !split_.values[input].whole;
  const auto is_part = [&](const Range& range) {
    return !range.empty() && range != Range{0, columns};
  };
  const bool is_gathered = has_own && std::ranges::any_of(split_.values[input].columns, is_part);
  const Range summed = has_own ? own : Range{0, columns};
  const auto place_sums = [&] {
    const Stretch rows =
        step_areas_.take_f32(is_gathered ? Arena::kExchange : Arena::kScratch,
                             divide_up(columns, kChunkColumns), values_.row_count(input));
    return ChunkSums{rows.at<float>(), rows.floats()};
  };
  const ChunkSums squares = place_sums();
  const ChunkSums sums = node.operation == Operation::kLayerNorm ? place_sums() : ChunkSums();
  const size_t first_chunk = summed.begin / kChunkColumns;
  emit_step(NormSumsStep{.rows = graph_.rows(input),
                         .input = operand(input, summed),
                         .columns = summed.size(),
                         .chunks = {squares.sums + first_chunk, squares.stride},
                         .sums = {sums.sums + first_chunk, sums.stride},
                         .gather = is_gathered},
            is_gathered ? Meet::kAllRanks : Meet::kRank);
  NormScaleStep step{.rows = graph_.rows(input),
                     .input = operand(input, own),
                     .columns = own.size(),
                     .weight = vector(node.weight) + own.begin,
                     .bias = vector(node.bias) + own.begin,
                     .norm = {squares, columns, node.epsilon},
                     .sums = sums,
                     .output = place_output(node.output)};
  note_hidden_rows(node);
  values_.consume(input);
  const bool is_sent = step.output.is_gathered() || node.output == graph_.logits();
  emit_step(std::move(step), is_sent ? Meet::kAllRanks : Meet::kRank);
  step_areas_.release();
}

// Places the value that a sum ends in, and puts there what the sum begins with. Returns the value:
// the addition's with whose other operand it begins, or the sum's own.
ValueId RankPlanner::begin_sum(ValueId sum, Arena arena, Range columns) {
  const auto start = start_of_sum(graph_, split_, values_.readers(sum), sum);
  const ValueId target = start ? *values_.readers(sum).only() : sum;
  const Stretch rows = values_.place_plain(target, arena, columns);
  emit_step(ElementwiseStep{.function = start ? Elementwise::kCopy : Elementwise::kZero,
                            .rows = graph_.rows(target),
                            .routing = {},
                            .x = start ? operand(*start, columns) : PlainRows{},
                            .y = {},
                            .columns = columns.size(),
                            .output = {.rows = rows.at<float>(), .stride = rows.floats()}});
  if (start) {
    values_.consume(*start);
    values_.consume(sum);
  }
  finished_.push_back(target);
  return target;
}

// A partial result that is summed by a step of its own.
ResidualPlace RankPlanner::place_partial(ValueId product) {
  meet_ = Meet::kAllRanks;
  const Range whole = {0, graph_.columns(product)};
  const ValueId target = begin_sum(product, Arena::kExchange, whole);
  const Stretch partial =
      step_areas_.take_f32(Arena::kExchange, whole.size(), values_.row_count(product));
  add_reduction(product, *values_.of(target).plain, partial);
  return {partial.at<float>(), partial.floats(), false, std::nullopt};
}

ResidualPlace RankPlanner::place_expert_sum(ValueId sum) {
  const ValueId target = begin_sum(sum, Arena::kScratch, own_columns(sum));
  const Stretch rows = *values_.of(target).plain;
  return {rows.at<float>(), rows.floats(), true, std::nullopt};
}

}  // namespace lockstep
