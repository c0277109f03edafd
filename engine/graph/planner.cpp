#include "engine/graph/planner.h"

#include <optional>
#include <utility>

#include "engine/base/check.h"
#include "engine/graph/scratch_allocator.h"

namespace lockstep {
namespace {

// Where the rows of a value lie in the scratch arena. Values that are computed in place share one.
struct Buffer {
  size_t offset = 0;
  size_t stride = 0;  // floats
  size_t columns = 0;
  std::optional<size_t> q8_offset;
  size_t q8_stride = 0;
  size_t references = 0;  // uses still to come; at 0 the stretch is free again
};

// What happens to a head before attention sees it.
struct HeadTreatment {
  WeightId norm = kNone;
  float epsilon = 0;
  bool rotary = false;
};

class Planner {
 public:
  Planner(const Graph& graph, const PlanOptions& options, const ArenaAddresses& arenas)
      : graph_(graph),
        options_(options),
        arenas_(arenas),
        consumers_(graph.value_count()),
        uses_(graph.value_count()),
        needs_q8_(graph.value_count()),
        rows_(graph.value_count(), Rows::kTokens),
        heads_(graph.value_count()),
        buffer_(graph.value_count(), kNone),
        emitted_(graph.nodes().size()) {}

  Plan make();

 private:
  template <typename T>
  T* scratch(size_t offset) const {
    return reinterpret_cast<T*>(arenas_.scratch + offset);
  }

  void count_uses();
  void place_weights();
  void place_kv();
  PackedMatrix matrix(WeightId weight) const;
  const float* vector(WeightId weight) const;

  Buffer& make_buffer(ValueId value);
  void share_buffer(ValueId value, ValueId with);
  void consume(ValueId value);
  Buffer& buffer_of(ValueId value) { return buffers_[buffer_[value]]; }
  ProductInput product_input(const Buffer& buffer) const;

  void emit(size_t node_index);
  void emit_embed(const Node& node);
  void emit_norm(const Node& node);
  void emit_matmuls(size_t node_index);
  MatmulPart matmul_part(const Node& node);
  void emit_attention(const Node& node);
  void emit_silu_multiply(const Node& node);
  void emit_rotary_table();
  std::optional<size_t> only_consumer(ValueId value) const;

  const Graph& graph_;
  const PlanOptions& options_;
  const ArenaAddresses& arenas_;
  ScratchAllocator allocator_;
  std::vector<std::vector<size_t>> consumers_;  // by value: the nodes that read it, ascending
  std::vector<size_t> uses_;                    // by value: how many there are, the engine included
  std::vector<bool> needs_q8_;        // by value: a product with quantized weights reads it
  std::vector<Rows> rows_;            // by value
  std::vector<HeadTreatment> heads_;  // by value
  std::vector<size_t> buffer_;        // by value: index into buffers_
  std::vector<Buffer> buffers_;
  std::vector<bool> emitted_;  // by node
  const float* rotary_table_ = nullptr;
  size_t rotary_stride_ = 0;
  Plan plan_;
};

void Planner::count_uses() {
  for (size_t index = 0; index < graph_.nodes().size(); ++index) {
    const Node& node = graph_.nodes()[index];
    for (const ValueId input : node.inputs) {
      consumers_[input].push_back(index);
      ++uses_[input];
      if (node.operation == Operation::kMatmul &&
          activation_form(graph_.weights()[node.weight].format) == ActivationForm::kQ8) {
        needs_q8_[input] = true;
      }
    }
  }
  ++uses_[graph_.logits()];  // the engine's
}

void Planner::place_weights() {
  size_t offset = 0;
  for (WeightId id = 0; id < graph_.weights().size(); ++id) {
    const Weight& weight = graph_.weights()[id];
    const size_t panels = (weight.rows + kPanelRows - 1) / kPanelRows;
    const size_t bytes = weight.is_matrix ? panels * panel_bytes(weight.format, weight.columns)
                                          : weight.columns * sizeof(float);
    plan_.weights.push_back({.weight = id,
                             .row_begin = 0,
                             .row_end = weight.rows,
                             .column_begin = 0,
                             .column_end = weight.columns,
                             .address = reinterpret_cast<std::byte*>(arenas_.weights + offset),
                             .size_bytes = bytes});
    offset += round_up<size_t>(bytes, 64);
  }
  plan_.weight_bytes = offset;
}

void Planner::place_kv() {
  plan_.kv.format = options_.kv_format;
  plan_.kv.page_count = options_.kv_pages;
  plan_.kv.base = reinterpret_cast<std::byte*>(arenas_.kv);
  for (const Node& node : graph_.nodes()) {
    if (node.operation != Operation::kAttention) continue;
    ++plan_.kv.layer_count;
    plan_.kv.head_count = node.kv_head_count;
    plan_.kv.head_dimension = node.head_dimension;
  }
}

PackedMatrix Planner::matrix(WeightId weight) const {
  const Weight& info = graph_.weights()[weight];
  const WeightSlice& slice = plan_.weights[weight];
  return {info.format, slice.row_end - slice.row_begin, info.columns, slice.address};
}

const float* Planner::vector(WeightId weight) const {
  if (weight == kNone) return nullptr;
  return reinterpret_cast<const float*>(plan_.weights[weight].address);
}

Buffer& Planner::make_buffer(ValueId value) {
  Buffer buffer;
  const size_t row_count =
      rows_[value] == Rows::kTokens ? options_.batch_tokens : options_.logit_rows;
  buffer.columns = graph_.columns(value);
  buffer.stride = activation_stride(buffer.columns);
  buffer.offset = allocator_.allocate(row_count * buffer.stride * sizeof(float));
  buffer.references = uses_[value];
  if (needs_q8_[value]) {
    buffer.q8_stride = activation_row_bytes(ActivationForm::kQ8, buffer.columns);
    buffer.q8_offset = allocator_.allocate(row_count * buffer.q8_stride);
  }
  buffer_[value] = buffers_.size();
  buffers_.push_back(buffer);
  return buffers_.back();
}

// `value` is computed in place over `with`.
void Planner::share_buffer(ValueId value, ValueId with) {
  buffer_[value] = buffer_[with];
  rows_[value] = rows_[with];
  Buffer& buffer = buffer_of(value);
  buffer.references += uses_[value];
  if (needs_q8_[value] && !buffer.q8_offset) {
    const size_t row_count =
        rows_[value] == Rows::kTokens ? options_.batch_tokens : options_.logit_rows;
    buffer.q8_stride = activation_row_bytes(ActivationForm::kQ8, buffer.columns);
    buffer.q8_offset = allocator_.allocate(row_count * buffer.q8_stride);
  }
  consume(with);
}

void Planner::consume(ValueId value) {
  Buffer& buffer = buffer_of(value);
  CHECK(buffer.references > 0, "value {} is used more often than it was counted", value);
  if (--buffer.references > 0) return;
  allocator_.release(buffer.offset);
  if (buffer.q8_offset) allocator_.release(*buffer.q8_offset);
}

ProductInput Planner::product_input(const Buffer& buffer) const {
  ProductInput input;
  input.f32 = scratch<float>(buffer.offset);
  input.f32_stride = buffer.stride;
  input.columns = buffer.columns;
  if (buffer.q8_offset) {
    input.q8 = scratch<std::byte>(*buffer.q8_offset);
    input.q8_stride = buffer.q8_stride;
  }
  return input;
}

void Planner::emit_rotary_table() {
  const size_t pairs = graph_.rotary_parameters().frequencies.size();
  if (pairs == 0) return;
  rotary_stride_ = activation_stride(2 * pairs);
  const size_t offset = allocator_.allocate(options_.batch_tokens * rotary_stride_ * sizeof(float));
  rotary_table_ = scratch<float>(offset);
  plan_.steps.emplace_back(RotaryTableStep{&graph_.rotary_parameters().frequencies,
                                           scratch<float>(offset), rotary_stride_});
}

void Planner::emit_embed(const Node& node) {
  const Buffer& buffer = make_buffer(node.output);
  plan_.steps.emplace_back(
      EmbedStep{matrix(node.weight), scratch<float>(buffer.offset), buffer.stride});
}

void Planner::emit_norm(const Node& node) {
  const ValueId input = node.inputs[0];
  rows_[node.output] = rows_[input];
  const Buffer output = make_buffer(node.output);
  const Buffer& from = buffer_of(input);
  plan_.steps.emplace_back(NormStep{.rows = rows_[input],
                                    .input = scratch<float>(from.offset),
                                    .input_stride = from.stride,
                                    .weight = vector(node.weight),
                                    .epsilon = node.epsilon,
                                    .output = product_input(output)});
  consume(input);
}

std::optional<size_t> Planner::only_consumer(ValueId value) const {
  if (uses_[value] != 1 || consumers_[value].empty()) return std::nullopt;
  return consumers_[value].front();
}

// The product itself, or with the addition that is its only use: into the other operand's rows.
MatmulPart Planner::matmul_part(const Node& node) {
  MatmulPart part;
  part.matrix = matrix(node.weight);
  part.bias = vector(node.bias);
  rows_[node.output] = rows_[node.inputs[0]];
  const auto consumer = only_consumer(node.output);
  if (consumer && graph_.nodes()[*consumer].operation == Operation::kAdd) {
    const Node& sum = graph_.nodes()[*consumer];
    const ValueId residual = sum.inputs[0] == node.output ? sum.inputs[1] : sum.inputs[0];
    CHECK(buffer_[residual] != kNone && buffer_of(residual).references == 1,
          "the residual of value {} is still in use", node.output);
    share_buffer(sum.output, residual);
    const Buffer& buffer = buffer_of(sum.output);
    part.output = scratch<float>(buffer.offset);
    part.output_stride = buffer.stride;
    part.accumulate = true;
    emitted_[*consumer] = true;
    return part;
  }
  const Buffer& buffer = make_buffer(node.output);
  part.output = scratch<float>(buffer.offset);
  part.output_stride = buffer.stride;
  return part;
}

// All products of the same input become one step.
void Planner::emit_matmuls(size_t node_index) {
  const ValueId input = graph_.nodes()[node_index].inputs[0];
  MatmulStep step;
  step.rows = rows_[input];
  step.input = product_input(buffer_of(input));
  size_t count = 0;
  for (const size_t index : consumers_[input]) {
    const Node& node = graph_.nodes()[index];
    if (node.operation != Operation::kMatmul) continue;
    step.parts.push_back(matmul_part(node));
    emitted_[index] = true;
    ++count;
  }
  for (; count > 0; --count) consume(input);
  plan_.steps.emplace_back(std::move(step));
}

void Planner::emit_attention(const Node& node) {
  const auto [q, k, v] = std::array{node.inputs[0], node.inputs[1], node.inputs[2]};
  const Buffer output = make_buffer(node.output);
  const Buffer& queries = buffer_of(q);
  const Buffer& keys = buffer_of(k);
  PrepareHeadsStep prepare{.layer = node.layer,
                           .queries = scratch<float>(queries.offset),
                           .keys = scratch<float>(keys.offset),
                           .values = scratch<float>(buffer_of(v).offset),
                           .query_stride = queries.stride,
                           .kv_stride = keys.stride,
                           .head_count = node.head_count,
                           .kv_head_count = node.kv_head_count,
                           .head_dimension = node.head_dimension,
                           .query_norm = vector(heads_[q].norm),
                           .key_norm = vector(heads_[k].norm),
                           .epsilon = heads_[q].epsilon,
                           .pairs = graph_.rotary_parameters().pairs};
  CHECK(heads_[q].rotary == heads_[k].rotary, "only one of queries and keys has rotary positions");
  if (heads_[q].rotary) {
    prepare.rotary_table = rotary_table_;
    prepare.rotary_stride = rotary_stride_;
    prepare.rotary_dimensions = 2 * graph_.rotary_parameters().frequencies.size();
  }
  plan_.steps.emplace_back(prepare);
  plan_.steps.emplace_back(AttendStep{.layer = node.layer,
                                      .queries = scratch<float>(queries.offset),
                                      .query_stride = queries.stride,
                                      .head_count = node.head_count,
                                      .kv_head_count = node.kv_head_count,
                                      .head_dimension = node.head_dimension,
                                      .scale = node.scale,
                                      .output = scratch<float>(output.offset),
                                      .output_stride = output.stride});
  if (output.q8_offset) {
    plan_.steps.emplace_back(QuantizeStep{Rows::kTokens, product_input(output)});
  }
  for (const ValueId input : node.inputs) consume(input);
}

void Planner::emit_silu_multiply(const Node& node) {
  share_buffer(node.output, node.inputs[0]);
  const Buffer& up = buffer_of(node.inputs[1]);
  plan_.steps.emplace_back(
      ActivateStep{product_input(buffer_of(node.output)), scratch<float>(up.offset), up.stride});
  consume(node.inputs[1]);
}

void Planner::emit(size_t node_index) {
  const Node& node = graph_.nodes()[node_index];
  switch (node.operation) {
    case Operation::kEmbed:
      return emit_embed(node);
    case Operation::kRmsNorm:
      return emit_norm(node);
    case Operation::kMatmul:
      return emit_matmuls(node_index);
    case Operation::kAttention:
      return emit_attention(node);
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
  CHECK(graph_.logits() != kNone, "the graph has no logits");
  plan_.batch_tokens = options_.batch_tokens;
  plan_.logit_rows = options_.logit_rows;
  count_uses();
  place_weights();
  place_kv();
  plan_.steps.emplace_back(ClearPagesStep{});
  emit_rotary_table();
  for (size_t index = 0; index < graph_.nodes().size(); ++index) {
    if (!emitted_[index]) emit(index);
  }
  const Buffer& logits = buffer_of(graph_.logits());
  plan_.logits = scratch<float>(logits.offset);
  plan_.logits_stride = logits.stride;
  plan_.vocabulary_size = graph_.columns(graph_.logits());
  plan_.scratch_bytes = allocator_.size_bytes();
  return std::move(plan_);
}

}  // namespace

Plan make_plan(const Graph& graph, const PlanOptions& options, const ArenaAddresses& arenas) {
  return Planner(graph, options, arenas).make();
}

}  // namespace lockstep
