#include "engine/graph/planner.h"

#include <numeric>
#include <optional>
#include <utility>

#include "engine/base/check.h"
#include "engine/graph/activation_buffers.h"
#include "engine/graph/value_uses.h"
#include "engine/graph/weight_placement.h"

namespace lockstep {
namespace {

// What happens to a head before attention sees it.
struct HeadTreatment {
  WeightId norm = kNone;
  float epsilon = 0;
  bool rotary = false;
};

class Planner {
 public:
  Planner(const Graph& graph, const Split& split, size_t rank, const PlanOptions& options,
          std::span<const ArenaAddresses> arenas)
      : graph_(graph),
        split_(split),
        rank_(rank),
        options_(options),
        own_(arenas.empty() ? ArenaAddresses{} : arenas[rank]),
        root_(arenas.empty() ? ArenaAddresses{} : arenas[0]),
        uses_(find_uses(graph)),
        rows_(graph.value_count(), Rows::kTokens),
        heads_(graph.value_count()),
        buffer_(graph.value_count(), kNone),
        emitted_(graph.nodes().size()) {
    plan_.peers.rank = rank;
    for (size_t other = 0; other < split.rank_count; ++other) {
      plan_.peers.distances.push_back(
          arenas.empty() ? 0 : static_cast<std::ptrdiff_t>(arenas[other].exchange - own_.exchange));
    }
  }

  Plan make();

 private:
  template <typename T>
  T* at(const Stretch& stretch, size_t column = 0) const {
    const uintptr_t base = stretch.arena == Arena::kScratch ? own_.scratch : own_.exchange;
    return reinterpret_cast<T*>(base + stretch.offset + column * sizeof(T));
  }
  static size_t floats(const Stretch& stretch) { return stretch.stride_bytes / sizeof(float); }

  PackedMatrix matrix(WeightId weight) const;
  const float* vector(WeightId weight) const;

  size_t row_count(ValueId value) const {
    return rows_[value] == Rows::kTokens ? options_.batch_tokens : options_.logit_rows;
  }
  // Columns of the value that this rank computes.
  Range own_columns(ValueId value) const;
  Buffer& make_buffer(ValueId value, Arena arena, Range held);
  void add_q8(ValueId value, Arena arena, size_t columns);
  void share_buffer(ValueId value, ValueId with);
  void consume(ValueId value);
  Buffer& buffer_of(ValueId value) { return buffers_[buffer_[value]]; }
  ProductInput product_input(ValueId value);
  Q8Output q8_output(ValueId value, Range columns);
  void emit_step(StepWork work, Meet meet = Meet::kRank);

  void emit(size_t node_index);
  void emit_embed(const GraphNode& node);
  void emit_norm(const GraphNode& node);
  void emit_matmuls(size_t node_index);
  void add_part(const GraphNode& node, MatmulStep& step, Meet& meet,
                std::vector<AllReduceStep>& reductions);
  void add_to_residual(const GraphNode& node, const GraphNode& sum, MatmulPart& part, Meet& meet,
                       std::vector<AllReduceStep>& reductions);
  void place_bf16_sums(ValueId value, AllReduceStep& sum);
  void place_logits(const GraphNode& node, MatmulPart& part);
  PrepareHeadsStep prepare_heads(const GraphNode& node);
  void make_gathered_forms(ValueId value, Range own);
  void emit_attend(const GraphNode& node);
  void emit_silu_multiply(const GraphNode& node);
  void emit_rotary_table();
  std::optional<size_t> only_consumer(ValueId value) const {
    if (uses_[value].count != 1 || uses_[value].consumers.empty()) return std::nullopt;
    return uses_[value].consumers.front();
  }

  const Graph& graph_;
  const Split& split_;
  const size_t rank_;
  const PlanOptions& options_;
  const ArenaAddresses own_;
  const ArenaAddresses root_;  // rank 0's, for the logits
  ActivationBuffers activations_;
  std::vector<ValueUses> uses_;       // by value
  std::vector<Rows> rows_;            // by value
  std::vector<HeadTreatment> heads_;  // by value
  std::vector<size_t> buffer_;        // by value: index into buffers_
  std::vector<Buffer> buffers_;
  std::vector<Stretch> bf16_areas_;  // of the sums of the product at hand
  std::vector<bool> emitted_;        // by node
  const float* rotary_table_ = nullptr;
  size_t rotary_stride_ = 0;
  Plan plan_;
};

PackedMatrix Planner::matrix(WeightId weight) const {
  const WeightSlice& slice = plan_.weights[weight];
  return {graph_.weights()[weight].format, slice.row_end - slice.row_begin,
          slice.column_end - slice.column_begin, slice.address};
}

const float* Planner::vector(WeightId weight) const {
  if (weight == kNone || plan_.weights[weight].size_bytes == 0) return nullptr;
  return reinterpret_cast<const float*>(plan_.weights[weight].address);
}

Range Planner::own_columns(ValueId value) const {
  const ValueSplit& split = split_.values[value];
  if (split.kind != SplitKind::kSliced) return {0, graph_.columns(value)};
  return split.columns[rank_];
}

Buffer& Planner::make_buffer(ValueId value, Arena arena, Range held) {
  Buffer buffer;
  buffer.f32 = activations_.allocate_f32(arena, held.size(), row_count(value));
  buffer.held = held;
  buffer.references = uses_[value].count;
  buffer_[value] = buffers_.size();
  buffers_.push_back(buffer);
  return buffers_.back();
}

void Planner::add_q8(ValueId value, Arena arena, size_t columns) {
  Buffer& buffer = buffer_of(value);
  buffer.q8 = activations_.allocate_q8(arena, columns, row_count(value));
  buffer.q8_columns = columns;
}

// `value` is computed in place over `with`.
void Planner::share_buffer(ValueId value, ValueId with) {
  buffer_[value] = buffer_[with];
  rows_[value] = rows_[with];
  buffer_of(value).references += uses_[value].count;
  consume(with);
}

void Planner::consume(ValueId value) {
  Buffer& buffer = buffer_of(value);
  CHECK(buffer.references > 0, "value {} is used more often than it was counted", value);
  if (--buffer.references == 0) activations_.release(buffer);
}

// What products read: of a value that is gathered only what has been exchanged.
ProductInput Planner::product_input(ValueId value) {
  const Buffer& buffer = buffer_of(value);
  const bool whole = !split_.values[value].gathered || buffer.f32.arena == Arena::kExchange;
  ProductInput input;
  input.columns = buffer.q8 ? buffer.q8_columns : buffer.held.size();
  if (whole) {
    input.f32 = at<float>(buffer.f32);
    input.f32_stride = floats(buffer.f32);
  }
  if (buffer.q8) {
    input.q8 = at<std::byte>(*buffer.q8);
    input.q8_stride = buffer.q8->stride_bytes;
  }
  return input;
}

Q8Output Planner::q8_output(ValueId value, Range columns) {
  const Buffer& buffer = buffer_of(value);
  if (!buffer.q8) return {};
  const bool whole = buffer.q8_columns == columns.size();
  return {at<std::byte>(*buffer.q8), buffer.q8->stride_bytes, buffer.q8_columns,
          whole ? 0 : columns.begin};
}

void Planner::emit_step(StepWork work, Meet meet) {
  plan_.steps.push_back({std::move(work), meet});
  if (meet == Meet::kAllRanks) activations_.all_ranks_met();
}

void Planner::emit_rotary_table() {
  const size_t pairs = graph_.rotary_parameters().frequencies.size();
  if (pairs == 0) return;
  const Stretch table =
      activations_.allocate_f32(Arena::kScratch, 2 * pairs, options_.batch_tokens);
  rotary_stride_ = floats(table);
  rotary_table_ = at<float>(table);
  emit_step(
      RotaryTableStep{&graph_.rotary_parameters().frequencies, at<float>(table), rotary_stride_});
}

void Planner::emit_embed(const GraphNode& node) {
  const Buffer& buffer =
      make_buffer(node.output, Arena::kExchange, {0, graph_.columns(node.output)});
  emit_step(EmbedStep{.table = matrix(node.weight),
                      .row_begin = plan_.weights[node.weight].row_begin,
                      .output = at<float>(buffer.f32),
                      .output_stride = floats(buffer.f32),
                      .gather = true},
            Meet::kAllRanks);
}

void Planner::emit_norm(const GraphNode& node) {
  const ValueId input = node.inputs[0];
  const size_t columns = graph_.columns(node.output);
  rows_[node.output] = rows_[input];
  make_buffer(node.output, Arena::kScratch, {0, columns});
  if (uses_[node.output].needs_q8) add_q8(node.output, Arena::kScratch, columns);
  const Buffer& from = buffer_of(input);
  emit_step(NormStep{.rows = rows_[input],
                     .input = at<float>(from.f32),
                     .input_stride = floats(from.f32),
                     .weight = vector(node.weight),
                     .epsilon = node.epsilon,
                     .output = product_input(node.output)});
  consume(input);
}

// Taken for the sum alone: the meeting of all ranks after it frees them.
void Planner::place_bf16_sums(ValueId value, AllReduceStep& sum) {
  for (uint16_t** area : {&sum.bf16_partial, &sum.bf16_sum}) {
    const Stretch stretch =
        activations_.allocate_f32(Arena::kExchange, (sum.columns + 1) / 2, row_count(value));
    *area = at<uint16_t>(stretch);
    bf16_areas_.push_back(stretch);
  }
}

// The product and the addition that is its only use: into the other operand's rows.
void Planner::add_to_residual(const GraphNode& node, const GraphNode& sum, MatmulPart& part,
                              Meet& meet, std::vector<AllReduceStep>& reductions) {
  const ValueId residual = sum.inputs[0] == node.output ? sum.inputs[1] : sum.inputs[0];
  CHECK(buffer_[residual] != kNone && buffer_of(residual).references == 1,
        "the residual of value {} is still in use", node.output);
  share_buffer(sum.output, residual);
  const Stretch sums = buffer_of(sum.output).f32;
  meet = Meet::kAllRanks;
  if (split_.values[node.output].kind == SplitKind::kPartial) {
    const size_t columns = graph_.columns(node.output);
    const Buffer& partial = make_buffer(node.output, Arena::kExchange, {0, columns});
    part.output = at<float>(partial.f32);
    part.output_stride = floats(partial.f32);
    std::vector<size_t> all(split_.rank_count);
    std::iota(all.begin(), all.end(), size_t{0});
    reductions.push_back({.contributors = std::move(all),
                          .rows = rows_[node.output],
                          .partial = part.output,
                          .partial_stride = part.output_stride,
                          .output = at<float>(sums),
                          .output_stride = floats(sums),
                          .columns = columns});
    if (options_.bf16_sums) place_bf16_sums(node.output, reductions.back());
    return;
  }
  part.output = at<float>(sums, own_columns(node.output).begin);
  part.output_stride = floats(sums);
  part.accumulate = true;
  part.gather = true;
}

// Every rank writes its part of the logits where they are wanted: to rank 0.
void Planner::place_logits(const GraphNode& node, MatmulPart& part) {
  plan_.vocabulary_size = graph_.columns(node.output);
  plan_.logits_stride = activation_stride(plan_.vocabulary_size);
  plan_.logits = reinterpret_cast<float*>(root_.logits);
  const size_t rows = row_count(node.output);
  if (rank_ == 0) plan_.logits_bytes = rows * plan_.logits_stride * sizeof(float);
  part.output =
      reinterpret_cast<float*>(root_.logits + own_columns(node.output).begin * sizeof(float));
  part.output_stride = plan_.logits_stride;
  part.remote = rank_ != 0;
}

void Planner::add_part(const GraphNode& node, MatmulStep& step, Meet& meet,
                       std::vector<AllReduceStep>& reductions) {
  MatmulPart part;
  part.matrix = matrix(node.weight);
  part.bias = vector(node.bias);
  rows_[node.output] = rows_[node.inputs[0]];
  const auto next = only_consumer(node.output);
  if (next && graph_.nodes()[*next].operation == Operation::kAdd) {
    add_to_residual(node, graph_.nodes()[*next], part, meet, reductions);
    emitted_[*next] = true;
  } else if (node.output == graph_.logits()) {
    place_logits(node, part);
    meet = Meet::kAllRanks;
  } else {
    CHECK(!split_.values[node.output].gathered, "value {} is used neither by heads nor in a sum",
          node.output);
    const Buffer& buffer = make_buffer(node.output, Arena::kScratch, own_columns(node.output));
    part.output = at<float>(buffer.f32);
    part.output_stride = floats(buffer.f32);
  }
  if (part.matrix.rows > 0) step.parts.push_back(part);
}

// All products of the same input become one step.
void Planner::emit_matmuls(size_t node_index) {
  const ValueId input = graph_.nodes()[node_index].inputs[0];
  MatmulStep step;
  step.rows = rows_[input];
  step.input = product_input(input);
  Meet meet = Meet::kRank;
  std::vector<AllReduceStep> reductions;
  std::vector<ValueId> partials;
  for (const size_t index : uses_[input].consumers) {
    const GraphNode& node = graph_.nodes()[index];
    if (node.operation != Operation::kMatmul) continue;
    add_part(node, step, meet, reductions);
    if (split_.values[node.output].kind == SplitKind::kPartial) partials.push_back(node.output);
    emitted_[index] = true;
    consume(input);
  }
  emit_step(std::move(step), meet);
  for (const ValueId partial : partials) consume(partial);
  for (const Stretch& area : bf16_areas_) activations_.release(area);
  bf16_areas_.clear();
  for (const AllReduceStep& reduction : reductions) emit_step(reduction, Meet::kAllRanks);
}

PrepareHeadsStep Planner::prepare_heads(const GraphNode& node) {
  const auto [q, k, v] = std::array{node.inputs[0], node.inputs[1], node.inputs[2]};
  const Buffer& queries = buffer_of(q);
  const Buffer& keys = buffer_of(k);
  PrepareHeadsStep step{.layer = node.layer,
                        .queries = at<float>(queries.f32),
                        .keys = at<float>(keys.f32),
                        .values = at<float>(buffer_of(v).f32),
                        .query_stride = floats(queries.f32),
                        .kv_stride = floats(keys.f32),
                        .head_count = queries.held.size() / node.head_dimension,
                        .kv_head_count = keys.held.size() / node.head_dimension,
                        .head_dimension = node.head_dimension,
                        .query_norm = vector(heads_[q].norm),
                        .key_norm = vector(heads_[k].norm),
                        .epsilon = heads_[q].epsilon,
                        .pairs = graph_.rotary_parameters().pairs};
  CHECK(heads_[q].rotary == heads_[k].rotary, "only one of queries and keys has rotary positions");
  if (heads_[q].rotary) {
    step.rotary_table = rotary_table_;
    step.rotary_stride = rotary_stride_;
    step.rotary_dimensions = 2 * graph_.rotary_parameters().frequencies.size();
  }
  return step;
}

// The form f32 in the exchange arena where others read it, kQ8 where quantized products do.
void Planner::make_gathered_forms(ValueId value, Range own) {
  const bool gathered = split_.values[value].gathered;
  const Range all = {0, graph_.columns(value)};
  if (buffer_[value] == kNone) {
    const bool exchanged = gathered && uses_[value].needs_f32;
    make_buffer(value, exchanged ? Arena::kExchange : Arena::kScratch, exchanged ? all : own);
  }
  if (!uses_[value].needs_q8) return;
  add_q8(value, gathered ? Arena::kExchange : Arena::kScratch, gathered ? all.size() : own.size());
}

void Planner::emit_attend(const GraphNode& node) {
  const Buffer queries = buffer_of(node.inputs[0]);
  const Buffer keys = buffer_of(node.inputs[1]);
  const size_t dimension = node.head_dimension;
  const size_t group = node.head_count / node.kv_head_count;
  const Range own = own_columns(node.output);
  make_gathered_forms(node.output, own);
  const Stretch output = buffer_of(node.output).f32;
  const bool gathered = split_.values[node.output].gathered;
  const bool gather_f32 = output.arena == Arena::kExchange;
  const bool quantized = uses_[node.output].needs_q8;
  const Meet meet = gathered ? Meet::kAllRanks : Meet::kRank;
  float* own_output = at<float>(output, gather_f32 ? own.begin : 0);
  emit_step(AttendStep{.layer = node.layer,
                       .queries = at<float>(queries.f32),
                       .query_stride = floats(queries.f32),
                       .head_count = own.size() / dimension,
                       .kv_head_count = keys.held.size() / dimension,
                       .group = group,
                       .group_offset = own.begin / dimension - keys.held.begin / dimension * group,
                       .head_dimension = dimension,
                       .scale = node.scale,
                       .output = own_output,
                       .output_stride = floats(output),
                       .gather = gather_f32},
            quantized ? Meet::kRank : meet);
  if (!quantized) return;
  emit_step(QuantizeStep{.input = own_output,
                         .input_stride = floats(output),
                         .columns = own.size(),
                         .output = q8_output(node.output, own),
                         .gather = gathered},
            meet);
}

void Planner::emit_silu_multiply(const GraphNode& node) {
  const auto [gate, up] = std::array{node.inputs[0], node.inputs[1]};
  const Range own = own_columns(node.output);
  const bool gathered = split_.values[node.output].gathered;
  const bool in_place = !(gathered && uses_[node.output].needs_f32);
  const Stretch gates = buffer_of(gate).f32;
  const Stretch ups = buffer_of(up).f32;
  if (in_place) share_buffer(node.output, gate);
  make_gathered_forms(node.output, own);
  const Stretch output = buffer_of(node.output).f32;
  emit_step(ActivateStep{.gate = at<float>(gates),
                         .gate_stride = floats(gates),
                         .up = at<float>(ups),
                         .up_stride = floats(ups),
                         .columns = own.size(),
                         .output = at<float>(output, in_place ? 0 : own.begin),
                         .output_stride = floats(output),
                         .gather_f32 = !in_place,
                         .q8 = q8_output(node.output, own),
                         .gather_q8 = gathered && uses_[node.output].needs_q8},
            gathered ? Meet::kAllRanks : Meet::kRank);
  if (!in_place) consume(gate);
  consume(up);
}

void Planner::emit(size_t node_index) {
  const GraphNode& node = graph_.nodes()[node_index];
  switch (node.operation) {
    case Operation::kEmbed:
      return emit_embed(node);
    case Operation::kRmsNorm:
      return emit_norm(node);
    case Operation::kMatmul:
      return emit_matmuls(node_index);
    case Operation::kAttention:
      emit_step(prepare_heads(node));
      emit_attend(node);
      for (const ValueId input : node.inputs) consume(input);
      return;
    case Operation::kSiluMultiply:
      return emit_silu_multiply(node);
    case Operation::kHeadNorm:
      share_buffer(node.output, node.inputs[0]);
      heads_[node.output] = {node.weight, node.epsilon, false};
      return;
    case Operation::kRotary:
      share_buffer(node.output, node.inputs[0]);
      heads_[node.output] = heads_[node.inputs[0]];
      heads_[node.output].rotary = true;
      return;
    case Operation::kSelectRows:
      share_buffer(node.output, node.inputs[0]);
      rows_[node.output] = Rows::kLogits;
      return;
    case Operation::kAdd:
      CHECK(false, "value {} is a sum that no product can be merged with", node.output);
  }
}

Plan Planner::make() {
  plan_.batch_tokens = options_.batch_tokens;
  plan_.logit_rows = options_.logit_rows;
  plan_.weights = place_weights(graph_, split_, rank_, own_.weights);
  plan_.weight_bytes = weight_arena_bytes(plan_.weights);
  plan_.kv = place_kv(graph_, split_, rank_, options_.kv_format, options_.kv_pages, own_.kv);
  emit_step(ClearPagesStep{});
  emit_rotary_table();
  for (size_t index = 0; index < graph_.nodes().size(); ++index) {
    if (!emitted_[index]) emit(index);
  }
  plan_.scratch_bytes = activations_.scratch_bytes();
  plan_.exchange_bytes = activations_.exchange_bytes();
  return std::move(plan_);
}

}  // namespace

Plan make_plan(const Graph& graph, const Split& split, size_t rank, const PlanOptions& options,
               std::span<const ArenaAddresses> arenas) {
  CHECK(graph.logits() != kNone, "the graph has no logits");
  CHECK(rank < split.rank_count, "rank {} of {}", rank, split.rank_count);
  return Planner(graph, split, rank, options, arenas).make();
}

}  // namespace lockstep
