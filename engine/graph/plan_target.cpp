#include "engine/graph/plan_target.h"

#include <algorithm>

namespace lockstep {

Stretch StepAreas::take(ActivationForm form, Arena arena, size_t columns, size_t row_count) {
  taken_.push_back(activations_.allocate(form, arena, columns, row_count));
  return taken_.back();
}

void StepAreas::release() {
  for (const Stretch& area : taken_) activations_.release(area);
  taken_.clear();
}

WidestAttention widest_attention(const PlanSubject& subject) {
  WidestAttention widest;
  for (const GraphNode& node : subject.graph.nodes()) {
    if (node.operation != Operation::kAttention) continue;
    widest.group = std::max(widest.group, node.head_count / node.kv_head_count);
    const ValueSplit& value = subject.split.values[node.output];
    const size_t columns = value.kind == SplitKind::kSliced ? value.columns[subject.rank].size()
                                                            : subject.graph.columns(node.output);
    widest.columns = std::max(widest.columns, columns);
  }
  return widest;
}

}  // namespace lockstep
