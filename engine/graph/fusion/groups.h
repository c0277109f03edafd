// The nodes of a graph in groups, each of which one step computes. At first every node is a group
// of its own, a plain step; the fusion rules (rules.h) join some of them. A group's step stands in
// the place of its lead, and a join that would let a step read what a later one computes is
// refused.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/graph/split.h"

namespace lockstep {

struct Group {
  size_t lead = 0;            // the node that says which step it is, and where it stands
  std::vector<size_t> nodes;  // ascending; the lead is one of them

  friend bool operator==(const Group&, const Group&) = default;
};

class Groups {
 public:
  // Both must outlive this.
  Groups(const Graph& graph, const Split& split);

  const Graph& graph() const { return graph_; }
  const Split& split() const { return split_; }
  const ValueReaders& readers(ValueId value) const { return readers_[value]; }
  const GraphNode& node(size_t index) const { return graph_.nodes()[index]; }

  const Group& of(size_t node) const { return groups_[group_of_[node]]; }
  bool is_alone(size_t node) const { return of(node).nodes.size() == 1; }

  // Makes one group of these nodes and of all that are in their groups. False, and nothing is
  // changed, where its step would not stand between those that it reads from and its readers, or
  // where several ranks would compute it, a part each.
  bool join(std::span<const size_t> nodes, size_t lead);

  // In the order of their steps.
  std::vector<Group> in_order() const;

 private:
  bool stands_in_order(const Group& group) const;
  bool is_one_owners(const Group& group) const;

  const Graph& graph_;
  const Split& split_;
  std::vector<ValueReaders> readers_;  // by value
  std::vector<Group> groups_;          // by the node that first was alone in it; or without nodes
  std::vector<size_t> group_of_;       // by node
};

// The group's nodes of this operation.
std::vector<size_t> nodes_of(const Graph& graph, const Group& group, Operation operation);
// The first of them.
std::optional<size_t> node_of(const Graph& graph, const Group& group, Operation operation);

// Whether products alone read the value.
bool only_products_read(const Graph& graph, const ValueReaders& readers, ValueId value);

// Whether a node is an RMS norm that is a factor of products: nothing else reads it. Its arithmetic
// is then that of x * weight, whose products are multiplied with the factor; else it is computed as
// a whole. The graph alone decides it.
bool is_norm_factored(const Graph& graph, const ValueReaders& readers, size_t node);

// The product whose results are logits, behind scales and caps. None: they are something else.
std::optional<size_t> logits_product(const Graph& graph);

// The residual whose norm is multiplied to logits: hidden states are made of it after the pass.
// None: the logits are not of a norm.
std::optional<ValueId> hidden_residual(const Graph& graph);

// The value with which a sum begins, of experts or of the ranks' partial results: the other operand
// of the addition that alone reads it, if that is computed before and is laid over the ranks as the
// sum is. None: it begins with zeros. The graph and its split alone decide it.
std::optional<ValueId> start_of_sum(const Graph& graph, const Split& split,
                                    const ValueReaders& readers, ValueId sum);

}  // namespace lockstep
