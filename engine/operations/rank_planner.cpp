#include "engine/operations/rank_planner.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/operations/operation_table.h"

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

// One for all layers: each is done with it before the next one routes.
void RankPlanner::place_routing() {
  const size_t experts = graph_.most_experts();
  if (experts == 0) return;
  const size_t rows = options_.tokens_at_once() * graph_.chosen_experts();
  const auto place = [&](size_t count) {
    return values_.activations().allocate_f32(Arena::kScratch, count, 1);
  };
  routing_.chosen = place(rows).at<uint32_t>();
  routing_.weights = place(rows).at<float>();
  routing_.row_begin = place(experts + 1).at<uint32_t>();
  routing_.row_tokens = place(rows).at<uint32_t>();
}

void RankPlanner::place_rotary_tables() {
  for (const Rotary& rotary : graph_.rotaries()) {
    const size_t pairs = rotary.frequencies.size();
    if (pairs == 0) {
      rotary_tables_.emplace_back();
      continue;
    }
    const Stretch rows =
        values_.activations().allocate_f32(Arena::kScratch, 2 * pairs, options_.tokens_at_once());
    rotary_tables_.push_back({rows.at<float>(), rows.floats(), 2 * pairs});
    emit(RotaryTableStep{.frequencies = rotary.frequencies,
                         .magnitude = rotary.magnitude,
                         .offset = rotary.offset,
                         .table = rows.at<float>(),
                         .stride = rows.floats()});
  }
}

void RankPlanner::place_states() {
  if (!graph_.has_states()) return;
  const size_t slots = options_.state_slots == 0 ? options_.batch_tokens : options_.state_slots;
  plan_.states.slot_count = slots;
  for (const GraphNode& node : graph_.nodes()) {
    const OperationRow& row = row_of(node.operation);
    if (row.state == nullptr) continue;
    const StateShape shape = row.state(node, own_columns(node.output).size());
    Stretch rows;
    if (shape.columns > 0) {
      rows = values_.activations().allocate_f32(Arena::kScratch, shape.columns, slots * shape.rows);
      state_copies_.parts.push_back({rows.at<float>(), shape.rows * rows.floats()});
    }
    states_.emplace(node.output, rows);
    plan_.states.slot_bytes += shape.rows * rows.stride_bytes;
  }
}

void RankPlanner::emit_state_copies() {
  if (graph_.has_states()) emit(std::move(state_copies_));
}

void RankPlanner::place_handed_rows() {
  size_t columns = 0;
  for (const LayerBorder& border : split_.borders) {
    columns = std::max(columns, graph_.columns(border.residual));
  }
  if (columns == 0) return;
  handed_rows_ = values_.activations().allocate_f32(
      Arena::kExchange, scratch_row_bytes(columns) / sizeof(float), options_.tokens_at_once());
}

// A rank takes one residual in a pass at most, and what it takes stays in its place: ranks have
// layers that follow one another.
void RankPlanner::emit_hand_over(const LayerBorder& border) {
  const ValueId residual = border.residual;
  const Range all = {0, graph_.columns(residual)};
  Stretch rows = handed_rows_;
  rows.stride_bytes = scratch_row_bytes(all.size());  // as the giver's rows, which go at once
  HandOverStep step{.giver = split_.owners[border.node - 1],
                    .taker = split_.owners[border.node],
                    .columns = all.size(),
                    .output = rows.at<float>(),
                    .output_stride = rows.floats()};
  const bool gives = step.giver == rank_;
  const bool takes = step.taker == rank_;
  if (gives) {
    const PlainRows own = operand(residual, all);
    step.input = own.rows;
    step.input_stride = own.stride;
  }
  if (takes) values_.place_handed(residual, rows, all);
  emit(std::move(step), Meet::kAllRanks);
  for (const size_t reader : values_.readers(residual).nodes) {
    const bool is_behind = reader >= border.node;
    if ((gives && is_behind) || (takes && !is_behind)) values_.consume(residual);
  }
  if (takes) emit_forms(residual);
}

Routing RankPlanner::routing_of(ValueId routing) const {
  const GraphNode& node = graph_.producer(routing);
  Routing result = routing_;
  result.expert_count = node.expert_count;
  result.chosen_count = node.chosen_count;
  result.weighs_inputs = node.gating.weighs_inputs;
  return result;
}

Routing RankPlanner::routing_behind(ValueId value) const {
  if (graph_.rows(value) != Rows::kExperts) return {};
  const GraphNode* node = &graph_.producer(value);
  while (node->operation != Operation::kExpertMatmul) node = &graph_.producer(node->inputs[0]);
  return routing_of(node->inputs[1]);
}

// Sums of partial results are pushed into every rank's copy of a mirrored value.
Arena RankPlanner::plain_arena(ValueId value) const {
  const bool may_take_sums = split_.strategy == Strategy::kReduce && split_.rank_count > 1 &&
                             split_.values[value].kind != SplitKind::kSliced;
  return may_take_sums ? Arena::kExchange : Arena::kScratch;
}

PlainOutput RankPlanner::place_output(ValueId value) {
  const Range own = own_columns(value);
  PlainOutput output;
  output.columns = own.size();
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

ArenaOffset<float> RankPlanner::place_logits() {
  const ValueId logits = graph_.logits();
  plan_.vocabulary_size = graph_.columns(logits);
  plan_.logits_stride = activation_stride(plan_.vocabulary_size);
  plan_.logits = {Arena::kLogits, 0};
  const size_t rows = values_.row_count(logits);
  if (rank_ == 0) plan_.logits_bytes = rows * plan_.logits_stride * sizeof(float);
  return plan_.logits + own_columns(logits).begin;
}

// One rank hands out the columns that several have.
void RankPlanner::note_kept_rows() {
  for (const ValueId value : graph_.kept()) {
    const ValueSplit& split = split_.values[value];
    CHECK(split.kind != SplitKind::kPartial, "value {} is kept, and ranks have parts of it", value);
    KeptRows kept;
    kept.width = graph_.columns(value);
    const bool is_alone = split.kind == SplitKind::kSliced && !split_.is_by_layers();
    const bool hands_out = is_alone || (split_.is_by_layers() ? computes(value) : rank_ == 0);
    if (hands_out) kept.columns = own_columns(value);
    if (!kept.columns.empty()) {
      const PlainRows rows = operand(value, kept.columns);
      kept.rows = rows.rows;
      kept.stride = rows.stride;
    }
    plan_.kept.push_back(kept);
  }
}

void RankPlanner::emit(StepWork work, Meet meet) {
  plan_.steps.push_back({std::move(work), meet});
  if (meet == Meet::kAllRanks) values_.activations().all_ranks_met();
}

Meet RankPlanner::meet_behind(ValueId value, const PlainOutput& output) const {
  if (output.is_gathered()) return Meet::kAllRanks;
  return value == graph_.logits() ? meet_behind_logits() : Meet::kRank;
}

void RankPlanner::emit_form_step(ValueId value, const FormsOutput& output) {
  const Range own = own_columns(value);
  const PlainRows input = operand(value, own);
  emit(FormStep{.rows = graph_.rows(value),
                .routing = routing_behind(value),
                .input = input.rows,
                .input_stride = input.stride,
                .columns = own.size(),
                .output = output},
       output.gather ? Meet::kAllRanks : Meet::kRank);
}

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

}  // namespace lockstep
