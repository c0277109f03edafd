#include "engine/model_work.h"

#include <algorithm>
#include <vector>

namespace lockstep {

ModelWork::ModelWork(const Graph& graph, KvFormat kv_format) {
  std::vector<bool> selected(graph.value_count());  // has only the rows whose logits are wanted
  for (const GraphNode& node : graph.nodes()) {
    selected[node.output] =
        node.operation == Operation::kSelectRows ||
        std::ranges::any_of(node.inputs, [&](ValueId input) { return selected[input]; });
    if (node.operation == Operation::kMatmul) {
      const Weight& weight = graph.weights()[node.weight];
      Matrices& matrices = selected[node.output] ? output_ : layers_;
      matrices.bytes += static_cast<double>(weight.rows * row_bytes(weight.format, weight.columns));
      matrices.elements += static_cast<double>(weight.rows * weight.columns);
    }
    if (node.operation == Operation::kAttention) {
      const size_t page_bytes = key_block_bytes(kv_format, node.head_dimension) +
                                value_block_bytes(kv_format, node.head_dimension);
      kv_bytes_ += static_cast<double>(node.kv_head_count * page_bytes) / kPageTokens;
    }
  }
}

void ModelWork::add(const Batch& batch, MeasuredWork& work) const {
  std::vector<size_t> lengths(batch.page_tables.size());
  for (const BatchToken& token : batch.tokens) {
    lengths[token.sequence] = std::max<size_t>(lengths[token.sequence], token.position + 1);
  }
  for (const size_t length : lengths) work.bytes += kv_bytes_ * static_cast<double>(length);
  work.bytes += layers_.bytes;
  work.operations += 2 * layers_.elements * static_cast<double>(batch.tokens.size());
  if (batch.logit_tokens.empty()) return;
  work.bytes += output_.bytes;
  work.operations += 2 * output_.elements * static_cast<double>(batch.logit_tokens.size());
}

}  // namespace lockstep
