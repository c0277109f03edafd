#include "engine/model/given_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace lockstep {
namespace {

constexpr const char* kRemedy =
    "it was made for another model. Use the one that was made for this model, or another drafter, "
    "as --speculate ngram";

Result<void> add_layers(const Model& model, const Model& draft, std::vector<ValueId>& values) {
  const std::vector<size_t>& layers = draft.given.layers;
  for (const size_t layer : layers) {
    if (layer >= model.layer_inputs.size()) {
      return invalid_input("it reads rows of layer {}, and the model ({}) has {} layers: {}", layer,
                           model.architecture, model.layer_count, kRemedy);
    }
    values.push_back(model.layer_inputs[layer]);
  }
  if (layers.empty()) return {};
  const size_t columns = model.graph.columns(model.layer_inputs.front());
  if (draft.given.own_begin == layers.size() * columns) return {};
  return invalid_input("it reads rows of {} columns, and those of the model ({}) have {}: {}",
                       draft.given.own_begin / layers.size(), model.architecture, columns, kRemedy);
}

// The attention that has stored a layer's keys and values; null: the layer has none of the usual
// kind.
const GraphNode* storing_attention(const Graph& graph, size_t layer) {
  const auto found = std::ranges::find_if(graph.nodes(), [&](const GraphNode& node) {
    return node.operation == Operation::kAttention && node.layer == layer;
  });
  if (found == graph.nodes().end()) return nullptr;
  const GraphNode* const node =
      found->stored_by == kNone ? &*found : &graph.producer(found->stored_by);
  return node->inputs.size() == 3 ? node : nullptr;
}

std::string text_of(size_t heads, size_t dimension, size_t window) {
  return fmt::format("{} heads of {} dimensions with {}", heads, dimension,
                     window == 0 ? "no window" : fmt::format("a window of {}", window));
}

Result<void> add_keys(const Model& model, const GivenKeys& keys, std::vector<ValueId>& values) {
  if (keys.from_end > model.layer_count) {
    return invalid_input("it reads keys of the last layers but {}, and the model ({}) has {}: {}",
                         keys.from_end - 1, model.architecture, model.layer_count, kRemedy);
  }
  const size_t layer = model.layer_count - keys.from_end;
  const GraphNode* const node = storing_attention(model.graph, layer);
  if (node == nullptr) {
    return invalid_input(
        "it reads keys and values of layer {}, and that of the model ({}) has "
        "none as they are known to be read: {}",
        layer, model.architecture, kRemedy);
  }
  const AttentionTraits& traits = node->attention;
  if (node->kv_head_count == keys.kv_heads && node->head_dimension == keys.head_dimension &&
      node->value_dimension == keys.head_dimension && traits.window == keys.window &&
      traits.section == 0) {
    values.push_back(node->inputs[1]);
    values.push_back(node->inputs[2]);
    return {};
  }
  return invalid_input(
      "it reads keys and values of layer {}, {}, and those of the model ({}) have "
      "{}: {}",
      layer, text_of(keys.kv_heads, keys.head_dimension, keys.window), model.architecture,
      text_of(node->kv_head_count, node->head_dimension, traits.window), kRemedy);
}

}  // namespace

size_t GivenRows::key_columns() const {
  size_t columns = 0;
  for (const GivenKeys& each : keys) columns += each.columns();
  return columns;
}

Result<std::vector<ValueId>> given_values(const Model& model, const Model& draft) {
  std::vector<ValueId> values;
  if (auto added = add_layers(model, draft, values); !added) {
    return std::unexpected(added.error());
  }
  for (const GivenKeys& keys : draft.given.keys) {
    if (auto added = add_keys(model, keys, values); !added) return std::unexpected(added.error());
  }
  return values;
}

}  // namespace lockstep
