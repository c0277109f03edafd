#include "engine/graph/value_uses.h"

namespace lockstep {

std::vector<ValueUses> find_uses(const Graph& graph, const ProductFormTable& forms) {
  std::vector<ValueUses> uses(graph.value_count());
  for (size_t index = 0; index < graph.nodes().size(); ++index) {
    const GraphNode& node = graph.nodes()[index];
    for (const ValueId input : node.inputs) {
      uses[input].consumers.push_back(index);
      ++uses[input].count;
      if (node.operation != Operation::kMatmul) continue;
      const ProductForms read = forms[static_cast<size_t>(graph.weights()[node.weight].format)];
      uses[input].forms[static_cast<size_t>(read.prompted)].prompted = true;
      uses[input].forms[static_cast<size_t>(read.generated)].generated = true;
    }
  }
  ++uses[graph.logits()].count;  // the engine's
  return uses;
}

}  // namespace lockstep
