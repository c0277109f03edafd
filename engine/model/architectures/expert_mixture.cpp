#include "engine/model/architectures/expert_mixture.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

// Bounds on what a file may claim. Layers of 512 experts are known, and models of 30 thousand in
// all, each of which is three weights of the graph.
constexpr uint64_t kMostChosen = 64;
constexpr uint64_t kMostExpertsOfAllLayers = 1U << 17U;

// A key, and the values with which a mixture is what the graph computes: without it, or as if
// there were none.
struct Limit {
  std::string_view key;
  std::array<double, 2> harmless;
  std::string_view known;
};

constexpr Limit kLimits[] = {
    {"expert_gating_func", {0, 1}, "1 (softmax)"},
    {"expert_weights_scale", {0, 1}, "1 (weights are not scaled)"},
    {"expert_group_count", {0, 1}, "1 (experts are not grouped)"},
    {"expert_shared_count", {0, 0}, "0 (no experts that every token goes to)"},
    {"expert_shared_feed_forward_length", {0, 0}, "0 (no experts that every token goes to)"},
    {"leading_dense_block_count", {0, 0}, "0 (experts in all layers)"},
    {"interleave_moe_layer_step", {0, 1}, "1 (experts in all layers)"},
    {"moe_every_n_layers", {0, 1}, "1 (experts in all layers)"},
};

Result<void> check_limits(ModelKeys& keys, const std::string& architecture) {
  for (const auto& [key, harmless, known] : kLimits) {
    const double value = keys.any_number(key).value_or(harmless.back());
    if (std::ranges::find(harmless, value) == harmless.end()) {
      return invalid_input("{}.{} is {}; known is {}", architecture, key, value, known);
    }
  }
  if (!keys.flag("expert_weights_norm").value_or(true)) {
    return invalid_input(
        "{}.expert_weights_norm is false; known is true (a token's weights add up to 1)",
        architecture);
  }
  return {};
}

}  // namespace

Result<ExpertMixture> read_expert_mixture(ModelKeys& keys, const std::string& architecture,
                                          size_t layers) {
  ExpertMixture mixture;
  mixture.experts = keys.count("expert_count", {}, kMostExperts);
  mixture.chosen =
      keys.count("expert_used_count", {}, std::min<uint64_t>(kMostChosen, mixture.experts));
  mixture.feed_forward = keys.count_or_none("expert_feed_forward_length", kMostColumns);
  if (mixture.feed_forward == 0) {  // Mixtral's
    mixture.feed_forward = keys.count("feed_forward_length", {}, kMostColumns);
  }
  auto limits = check_limits(keys, architecture);
  if (auto read = keys.result(); !read) return std::unexpected(read.error());
  if (!limits) return std::unexpected(limits.error());
  if (layers * mixture.experts > kMostExpertsOfAllLayers) {
    return invalid_input(
        "{}.block_count is {} and expert_count {}; at most {} experts are accepted", architecture,
        layers, mixture.experts, kMostExpertsOfAllLayers);
  }
  return mixture;
}

ValueId add_expert_mixture(Graph& graph, ModelTensors& tensors, const ExpertMixture& mixture,
                           const std::string& block, ValueId h) {
  const auto& [experts, chosen, feed_forward] = mixture;
  const size_t columns = graph.columns(h);
  const WeightId router = tensors.matrix(block + "ffn_gate_inp.weight", experts, columns);
  const std::array names = {block + "ffn_gate", block + "ffn_up"};
  auto gates_and_ups =
      tensors.experts(names, block + "ffn_gate_up", experts, feed_forward, columns);
  std::vector<WeightId> downs = tensors.experts(block + "ffn_down", experts, columns, feed_forward);
  if (tensors.failed()) return h;

  const ValueId routing = graph.route(graph.matmul(h, router), chosen);
  const ValueId gated = graph.expert_matmul(h, routing, std::move(gates_and_ups[0]));
  const ValueId raised = graph.expert_matmul(h, routing, std::move(gates_and_ups[1]));
  return graph.expert_sum(graph.gate(ActivationFunction::kSilu, gated, raised), routing,
                          std::move(downs));
}

}  // namespace lockstep
