// The readers of a graph's values, and the forms that they read.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/kernels/profile.h"

namespace lockstep {

struct ValueUses {
  std::vector<size_t> consumers;  // the nodes that read it, ascending
  size_t count = 0;               // how many uses there are, the engine's included

  // The forms in which products read it, by ActivationForm.
  struct Form {
    bool prompted = false;
    bool generated = false;
    bool any() const { return prompted || generated; }
  };
  std::array<Form, kActivationFormCount> forms;
};

// The matrix that the node multiplies its input `input` with (of experts', which are alike, the
// first); kNone: it does something else with it.
WeightId multiplied_weight(const GraphNode& node, ValueId input);

// By ValueId.
std::vector<ValueUses> find_uses(const Graph& graph, const ProductFormTable& forms);

}  // namespace lockstep
