#include "engine/operations/plan_target.h"

#include <algorithm>
#include <variant>

namespace lockstep {

WidestAttention widest_attention(const PlanSubject& subject) {
  WidestAttention widest;
  for (const GraphNode& node : subject.graph.nodes()) {
    if (node.operation != Operation::kAttention) continue;
    widest.group = std::max(widest.group, node.head_count / node.kv_head_count);
    const ValueSplit& value = subject.split.values[node.output];
    const size_t columns = value.kind == SplitKind::kSliced ? value.columns[subject.rank].size()
                                                            : subject.graph.columns(node.output);
    widest.columns = std::max(widest.columns, columns);
    const size_t head_columns = subject.graph.columns(node.output) / node.head_count;
    widest.heads = std::max(widest.heads, columns / head_columns);
  }
  return widest;
}

PlanOptions options_on(const RankPlace& place, PlanOptions options) {
  options.workers = place.cpus.size();
  const bool on_gpu = std::holds_alternative<GpuPlace>(place.device);
  options.target = on_gpu ? &gpu_plan_target() : &node_plan_target();
  if (!on_gpu) {
    options.chunk_tokens = 0;
    return options;
  }
  options.forms = gpu_product_forms();
  options.prompt_attention = AttentionForm::kF32;
  return options;
}

}  // namespace lockstep
