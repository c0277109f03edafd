#include "engine/measure/model_work.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/operations/operation_table.h"

namespace lockstep {

ModelWork::ModelWork(const Graph& graph, const KvFormats& kv_format) {
  std::vector<bool> selected(graph.value_count());  // has only the rows whose logits are wanted
  for (const GraphNode& node : graph.nodes()) {
    selected[node.output] =
        gives_logit_rows(node.operation) ||
        std::ranges::any_of(node.inputs, [&](ValueId input) { return selected[input]; });
    const auto add = [&](WeightId id, Matrices& matrices) {
      const Weight& weight = graph.weights()[id];
      matrices.bytes +=
          static_cast<double>(weight.rows * packed_row_bytes(weight.format, weight.columns));
      matrices.elements += static_cast<double>(weight.rows * weight.columns);
    };
    const Cost cost = row_of(node.operation).cost;
    if (cost == Cost::kMatrix) add(node.weight, selected[node.output] ? output_ : layers_);
    for (const WeightId expert : node.experts) add(expert, experts_);
    if (node.operation == Operation::kRoute) {
      expert_share_ =
          static_cast<double>(node.chosen_count) / static_cast<double>(node.expert_count);
    }
    if (cost == Cost::kCache) {
      const size_t page_bytes = key_block_bytes(kv_format.keys, node.head_dimension) +
                                value_block_bytes(kv_format.values, stored_value_dimension(node));
      const AttentionWindow window = {node.attention.window, node.attention.section};
      auto cache = std::ranges::find(caches_, window, &Cache::window);
      if (cache == caches_.end()) cache = caches_.insert(cache, Cache{window, 0});
      cache->bytes += static_cast<double>(node.kv_head_count * page_bytes) / kPageTokens;
    }
  }
}

void ModelWork::add(const Batch& batch, MeasuredWork& work) const {
  struct SequenceTokens {
    size_t length = 0;  // after the pass
    size_t tokens = 0;  // of the pass
  };
  std::vector<SequenceTokens> sequences(batch.sequence_count());
  for (const BatchToken& token : batch.tokens) {
    SequenceTokens& sequence = sequences[token.sequence];
    sequence.length = std::max<size_t>(sequence.length, token.position + 1);
    ++sequence.tokens;
  }
  for (const auto& [length, tokens] : sequences) {
    if (tokens == 0) continue;
    for (const Cache& cache : caches_) {
      const size_t seen = length - cache.window.first_seen(length - tokens);
      work.bytes += cache.bytes * static_cast<double>(seen);
    }
  }
  const auto tokens = static_cast<double>(batch.tokens.size());
  work.bytes += layers_.bytes;
  work.operations += 2 * layers_.elements * tokens;
  // As if every token chose its experts by chance: which ones it does only the ranks know.
  work.bytes += experts_.bytes * (1 - std::pow(1 - expert_share_, tokens));
  work.operations += 2 * experts_.elements * expert_share_ * tokens;
  if (batch.logit_tokens.empty()) return;
  work.bytes += output_.bytes;
  work.operations += 2 * output_.elements * static_cast<double>(batch.logit_tokens.size());
}

}  // namespace lockstep
