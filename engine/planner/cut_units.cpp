#include "engine/planner/cut_units.h"

#include <numeric>

#include "engine/kernels/activation.h"
#include "engine/operations/operation_table.h"
#include "engine/tensor/formats.h"

namespace lockstep {
namespace {

// Whether each element of the node's output is made of one of the value's, or of its head, and cut
// where that is.
bool is_handed_on(const GraphNode& node, ValueId value) {
  return (row_of(node.operation).split == SplitRule::kInputs &&
          node.operation != Operation::kAdd) ||
         node.operation == Operation::kHeadNorm ||
         (node.operation == Operation::kScaleRows && node.inputs[0] == value);
}

// The columns of whole heads of a delta net's or a scan's operand: of what value heads have those
// of a key head's together, where they follow one another, so that a rank has the key heads that
// its values read. A single key head of a scan is every rank's.
size_t head_block(const GraphNode& node, ValueId value, size_t columns) {
  const bool is_key = value == node.inputs[1] || value == node.inputs[2];
  if (is_key && value != node.inputs[0]) return node.head_dimension;
  const size_t each = columns / node.head_count;
  if (node.operation == Operation::kScan && node.delta.key_heads == 1) return each;
  const size_t group = node.delta.is_tiled ? 1 : node.delta.value_heads / node.delta.key_heads;
  return group * each;
}

}  // namespace

std::vector<WeightId> matrices_of(const GraphNode& product) {
  return product.experts.empty() ? std::vector{product.weight} : product.experts;
}

std::vector<WeightId> biases_of(const GraphNode& product) {
  return product.bias == kNone ? product.biases : std::vector{product.bias};
}

CutUnits::CutUnits(const Graph& graph, const ProductRoles& roles, bool cuts_columns)
    : graph_(graph), roles_(roles), cuts_columns_(cuts_columns) {
  for (const GraphNode& node : graph.nodes()) {
    if (node.operation == Operation::kAttention) add_attention(node);
    if (is_product(node)) add_heads_product(node);
  }
}

size_t CutUnits::input_block(ValueId value) const {
  size_t block = 1;
  for (const size_t index : roles_.consumers(value)) {
    const GraphNode& node = graph_.nodes()[index];
    const WeightId weight = multiplied_weight(node, value);
    if (row_of(node.operation).split == SplitRule::kValueHeads) {
      block = std::lcm(block, head_block(node, value, graph_.columns(value)));
      if (value == node.inputs[0]) block = std::lcm(block, input_block(node.output));
    }
    if (is_handed_on(node, value)) block = std::lcm(block, input_block(node.output));
    if (is_whole_norm(node)) {
      block = std::lcm(std::lcm(block, kChunkColumns), input_block(node.output));
    }
    // Heads are whole blocks.
    if (weight == kNone || node.operation == Operation::kHeadMatmul) continue;
    const Format format = graph_.weights()[weight].format;
    if (cuts_columns_) block = std::lcm(block, traits(format).block_elements);
    if (activation_form(format) == ActivationForm::kQ8) block = std::lcm(block, kQ8BlockElements);
  }
  return block;
}

size_t CutUnits::sum_block(ValueId value) const {
  size_t block = 1;
  if (!cuts_columns_) return block;
  for (const size_t index : roles_.consumers(value)) {
    const GraphNode& node = graph_.nodes()[index];
    if (node.operation != Operation::kAdd) continue;
    block = std::lcm(std::lcm(block, input_block(node.output)), sum_block(node.output));
  }
  return block;
}

size_t CutUnits::bias_block(const GraphNode& product) const {
  size_t block = 1;
  for (const WeightId bias : biases_of(product)) {
    block = std::lcm(block, traits(graph_.weights()[bias].format).block_elements);
  }
  return block;
}

size_t CutUnits::least_heads(const GraphNode& attention) const {
  const size_t dimension = attention.value_dimension;
  return std::lcm(attention_block_ / std::gcd(attention_block_, dimension), head_unit_);
}

// The heads of the value at whose multiples it may be cut for the sake of what is made of each head
// by itself.
size_t CutUnits::head_unit_behind(ValueId value, size_t head_count) const {
  size_t unit = 1;
  for (const size_t index : roles_.consumers(value)) {
    const GraphNode& node = graph_.nodes()[index];
    const bool is_of_heads = row_of(node.operation).split == SplitRule::kHeads;
    if (is_of_heads && node.head_count == head_count) {
      const size_t columns = graph_.columns(node.output) / head_count;
      const size_t block = input_block(node.output);
      unit = std::lcm(unit, block / std::gcd(block, columns));
    }
    if (is_of_heads || is_handed_on(node, value)) {
      unit = std::lcm(unit, head_unit_behind(node.output, head_count));
    }
  }
  return unit;
}

// A convolution has a bias of its own.
size_t CutUnits::block_behind(ValueId value, const GraphNode& reader) const {
  const size_t block = std::lcm(input_block(reader.output), bias_block(reader));
  if (row_of(reader.operation).split != SplitRule::kHeads) return block;
  const size_t heads = reader.head_count;
  return std::lcm(block, head_unit_behind(value, heads) * (graph_.columns(value) / heads));
}

void CutUnits::add_attention(const GraphNode& attention) {
  attention_block_ = std::lcm(attention_block_, input_block(attention.output));
  head_unit_ = std::lcm(head_unit_, head_unit_behind(attention.output, attention.head_count));
  if (const WeightId sinks = attention.attention.sinks; sinks != kNone) {
    head_unit_ = std::lcm(head_unit_, traits(graph_.weights()[sinks].format).block_elements);
  }
}

// Ranks may share a KV head only if parts of its bias may end at any head.
void CutUnits::add_heads_product(const GraphNode& product) {
  const Role role = roles_.role_of(product);
  const bool is_stored = role == Role::kKeys || role == Role::kValues;
  if (role != Role::kQueries && !is_stored) return;
  const GraphNode& attention = roles_.attention_of(product);
  const size_t block = bias_block(product);
  const size_t all = is_stored ? attention.kv_head_count : attention.head_count;
  const size_t heads = block / std::gcd(block, graph_.columns(product.output) / all);
  const size_t group = attention.head_count / attention.kv_head_count;
  head_unit_ = std::lcm(head_unit_, is_stored && heads > 1 ? group * heads : heads);
}

}  // namespace lockstep
