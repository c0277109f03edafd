#include "engine/graph/value_uses.h"

#include "engine/kernels/activation.h"

namespace lockstep {

std::vector<ValueUses> find_uses(const Graph& graph) {
  std::vector<ValueUses> uses(graph.value_count());
  for (size_t index = 0; index < graph.nodes().size(); ++index) {
    const GraphNode& node = graph.nodes()[index];
    for (const ValueId input : node.inputs) {
      uses[input].consumers.push_back(index);
      ++uses[input].count;
      if (node.operation != Operation::kMatmul) continue;
      const ActivationForm form = activation_form(graph.weights()[node.weight].format);
      (form == ActivationForm::kQ8 ? uses[input].needs_q8 : uses[input].needs_f32) = true;
    }
  }
  ++uses[graph.logits()].count;  // the engine's
  return uses;
}

}  // namespace lockstep
