#include "engine/graph/value_uses.h"

namespace lockstep {

WeightId multiplied_weight(const GraphNode& node, ValueId input) {
  const bool is_product = node.operation == Operation::kMatmul;
  if (!is_product && node.experts.empty()) return kNone;
  if (input != node.inputs.front()) return kNone;
  return is_product ? node.weight : node.experts.front();
}

std::vector<ValueUses> find_uses(const Graph& graph, const ProductFormTable& forms) {
  std::vector<ValueUses> uses(graph.value_count());
  for (size_t index = 0; index < graph.nodes().size(); ++index) {
    const GraphNode& node = graph.nodes()[index];
    for (const ValueId input : node.inputs) {
      uses[input].consumers.push_back(index);
      ++uses[input].count;
      const WeightId weight = multiplied_weight(node, input);
      if (weight == kNone) continue;
      const ProductForms read = forms[static_cast<size_t>(graph.weights()[weight].format)];
      uses[input].forms[static_cast<size_t>(read.prompted)].prompted = true;
      uses[input].forms[static_cast<size_t>(read.generated)].generated = true;
    }
  }
  ++uses[graph.logits()].count;  // the engine's
  return uses;
}

}  // namespace lockstep
