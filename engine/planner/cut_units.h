// The units at whose multiples values and heads are cut: whole blocks of the formats of weights,
// biases and activations, and whole chunks of norms.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/planner/product_roles.h"

namespace lockstep {

// The matrices of a product or of a product of experts, and their biases.
std::vector<WeightId> matrices_of(const GraphNode& product);
std::vector<WeightId> biases_of(const GraphNode& product);
inline bool is_whole_norm(const GraphNode& node) {
  return node.operation == Operation::kRmsNorm || node.operation == Operation::kLayerNorm;
}

class CutUnits {
 public:
  // `cuts_columns`: matrices may be cut by columns. Both must outlive this.
  CutUnits(const Graph& graph, const ProductRoles& roles, bool cuts_columns);

  // The quantization blocks in which products consume the value, or what is made of each of its
  // elements; at least a chunk's columns where a norm reads it, and else 1 where products take f32.
  size_t input_block(ValueId value) const;
  // The same of the sums that the value is added to, if products are cut by columns: a residual is
  // cut where the first product that adds to it is.
  size_t sum_block(ValueId value) const;
  // The elements at whose multiples the product's biases may be cut, with its rows; 1: anywhere.
  size_t bias_block(const GraphNode& product) const;
  // The elements at whose multiples the value may be cut for the sake of what this reader makes of
  // it: where that is made of each head by itself, those of whole heads.
  size_t block_behind(ValueId value, const GraphNode& reader) const;
  // The fewest query heads whose outputs are whole blocks, as are their biases and sinks, and what
  // is made of each head by itself.
  size_t least_heads(const GraphNode& attention) const;

 private:
  void add_attention(const GraphNode& attention);
  void add_heads_product(const GraphNode& product);
  size_t head_unit_behind(ValueId value, size_t head_count) const;

  const Graph& graph_;
  const ProductRoles& roles_;
  bool cuts_columns_;
  // The input_block() of every layer's attention: layers that share keys must be cut alike.
  size_t attention_block_ = 1;
  // Query heads at whose multiples no layer's heads are cut for the sake of what is made of them,
  // or its biases and sinks within a block.
  size_t head_unit_ = 1;
};

}  // namespace lockstep
