// Who reads a graph's values, and in which form.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/graph/graph.h"

namespace lockstep {

struct ValueUses {
  std::vector<size_t> consumers;  // the nodes that read it, ascending
  size_t count = 0;               // how many uses there are, the engine's included
  bool needs_f32 = false;         // a product with float weights reads it
  bool needs_q8 = false;          // a product with quantized weights reads it
};

// By ValueId.
std::vector<ValueUses> find_uses(const Graph& graph);

}  // namespace lockstep
