// The uses of products' outputs, from which it follows how their matrices are cut, and which are
// not.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/graph/split.h"

namespace lockstep {

inline bool is_product(const GraphNode& node) {
  return node.operation == Operation::kMatmul || !node.experts.empty();
}

enum class Role : uint8_t {
  kQueries,
  kKeys,
  kValues,      // of attention
  kScores,      // of experts
  kFactors,     // of rows, or of a delta net's or a scan's heads
  kActivation,  // read by one, by a gate, or by what keeps a state
  kResidual,    // added to a residual, or anything else
  kLogits,
};

class ProductRoles {
 public:
  explicit ProductRoles(const Graph& graph) : graph_(graph), readers_(find_readers(graph)) {}

  // The nodes that read the value.
  const std::vector<size_t>& consumers(ValueId value) const { return readers_[value].nodes; }
  // The first of them; null: there is none.
  const GraphNode* consumer(ValueId value) const;

  Role role_of(const GraphNode& product) const;
  // The attention that reads the product's output, of kQueries, kKeys and kValues.
  const GraphNode& attention_of(const GraphNode& product) const;
  // The routing that reads the product's output, of kScores.
  const GraphNode& routing_of(const GraphNode& product) const;

 private:
  // The first of those behind the product that is this operation.
  const GraphNode& first_behind(const GraphNode& product, Operation operation) const;
  // Whether the value is, itself or activated, the factors of rows.
  bool is_factors(ValueId value) const;

  const Graph& graph_;
  std::vector<ValueReaders> readers_;  // by value
};

// Adds to `held` the outputs of products of what every rank has, of which other ranks' columns are
// read under this split: a low-rank product in front of a norm, one that is added to a residual.
// True where there are such: every rank is to compute them in full, in another split.
bool add_held_products(const Graph& graph, const ProductRoles& roles, const Split& split,
                       std::set<ValueId>& held);

}  // namespace lockstep
