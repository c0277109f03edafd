#include "engine/model/architectures/expert_mixture.h"

#include <algorithm>
#include <array>
#include <cmath>
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

// By expert_gating_func.
constexpr std::array kGatings = {GatingFunction::kSoftmax, GatingFunction::kSigmoid,
                                 GatingFunction::kChosenSoftmax, GatingFunction::kSqrtSoftplus};

Result<Gating> read_gating(ModelKeys& keys, const std::string& architecture,
                           const MixtureTraits& traits, size_t experts) {
  Gating gating{.function = traits.gating};
  const double function = keys.any_number("expert_gating_func").value_or(0);
  if (function != 0) {
    const bool is_small = function >= 1 && function <= static_cast<double>(kGatings.size());
    const auto number = is_small ? static_cast<size_t>(function) : 0;
    if (static_cast<double>(number) != function) {
      return invalid_input(
          "{}.expert_gating_func is {}; known are 1 (softmax), 2 (sigmoid), 3 (softmax of the "
          "chosen) and 4 (square root of softplus)",
          architecture, function);
    }
    gating.function = kGatings[number - 1];
  }
  gating.is_normalized = keys.flag("expert_weights_norm").value_or(traits.is_normalized);
  gating.weighs_inputs = traits.weighs_inputs;
  gating.scale = static_cast<float>(keys.factor("expert_weights_scale", 1));
  gating.group_count = std::max<size_t>(1, keys.count_or_none("expert_group_count", experts));
  gating.chosen_groups =
      std::max<size_t>(1, keys.count_or_none("expert_group_used_count", gating.group_count));
  if (gating.group_count == 1) gating.chosen_groups = 1;
  if (!std::isfinite(gating.scale)) {
    return invalid_input("{}.expert_weights_scale is {}; it must be finite", architecture,
                         gating.scale);
  }
  if (experts % gating.group_count != 0) {
    return invalid_input("{}.expert_group_count is {} and expert_count {}: groups are of one size",
                         architecture, gating.group_count, experts);
  }
  return gating;
}

// Without biases of the choice a group is ranked by its best expert (DeepSeek-V2), with them by its
// two best (V3). Softmax of the chosen experts gives the weights of the normalized softmax of all,
// and needs no sum over all.
Gating without_bias(Gating gating) {
  if (gating.group_count > 1) gating.group_values = 1;
  const bool is_softmax = gating.function == GatingFunction::kSoftmax && gating.is_normalized;
  if (is_softmax && gating.group_count == 1) gating.function = GatingFunction::kChosenSoftmax;
  if (gating.function == GatingFunction::kChosenSoftmax) gating.is_normalized = false;
  return gating;
}

// The scores of all experts.
ValueId add_scores(Graph& graph, ModelTensors& tensors, const ExpertMixture& mixture,
                   const std::string& block, const MixtureInputs& inputs) {
  const size_t columns = graph.columns(inputs.normed);
  const std::string name = block + "ffn_gate_inp";
  if (mixture.router == RouterInput::kOwnNorm) {
    const WeightId norm = tensors.vector(name + ".scale", columns, Presence::kRequired);
    const WeightId matrix = tensors.matrix_alone(name + ".weight", mixture.experts, columns);
    if (tensors.failed()) return inputs.normed;
    const ValueId normed = graph.rms_norm(inputs.residual, norm, mixture.epsilon);
    return graph.scale(graph.matmul(normed, matrix), 1 / std::sqrt(static_cast<float>(columns)));
  }
  const Product router = tensors.product(block, {"ffn_gate_inp", mixture.experts}, columns);
  if (tensors.failed()) return inputs.normed;
  const ValueId read = mixture.router == RouterInput::kLayer ? inputs.layer : inputs.normed;
  return graph.matmul(read, router.weight, router.bias);
}

// `values`: the gate's product and the other one, or that alone where there is no gate.
ValueId activate(Graph& graph, const ExpertMixture& mixture, const std::vector<ValueId>& values) {
  return mixture.is_gated ? graph.gate(mixture.activation, values[0], values[1])
                          : graph.activation(mixture.activation, values[0]);
}

// The shared experts together: a feed-forward, whose rows a factor of each token may scale.
ValueId add_shared_experts(Graph& graph, ModelTensors& tensors, const ExpertMixture& mixture,
                           const std::string& block, ValueId h) {
  const size_t columns = graph.columns(h);
  const size_t wide = mixture.shared_feed_forward;
  const std::string factor_name = block + "ffn_gate_inp_shexp.weight";
  std::vector<Product> inputs;
  if (mixture.is_gated) inputs.push_back(tensors.product(block, {"ffn_gate_shexp", wide}, columns));
  inputs.push_back(tensors.product(block, {"ffn_up_shexp", wide}, columns));
  const Product down = tensors.product(block, {"ffn_down_shexp", columns}, wide);
  const WeightId factors =
      tensors.has(factor_name) ? tensors.matrix(factor_name, 1, columns) : kNone;
  if (tensors.failed()) return h;

  std::vector<ValueId> values;
  for (const Product& input : inputs) values.push_back(graph.matmul(h, input.weight, input.bias));
  const ValueId shared = graph.matmul(activate(graph, mixture, values), down.weight, down.bias);
  if (factors == kNone) return shared;
  return graph.scale_rows(ActivationFunction::kSigmoid, graph.matmul(h, factors), shared);
}

// Experts read the residual, or a narrower product of it.
ValueId add_latent(Graph& graph, ModelTensors& tensors, const ExpertMixture& mixture,
                   const std::string& block, ValueId h) {
  if (mixture.latent == 0) return h;
  const Product down =
      tensors.product(block, {"ffn_latent_down", mixture.latent}, graph.columns(h));
  return tensors.failed() ? h : graph.matmul(h, down.weight, down.bias);
}

// Adds the adjugate experts of each token's experts, with the same weights.
ValueId add_adjugate_experts(Graph& graph, ModelTensors& tensors, const ExpertMixture& mixture,
                             const std::string& block, ValueId h, ValueId routing) {
  const AdjugateExperts& adjugate = *mixture.adjugate;
  const size_t columns = graph.columns(h);
  const auto read = [&](const char* name, size_t rows, size_t inputs) {
    return tensors.group_experts(block + name, mixture.experts, adjugate.group, rows, inputs);
  };
  std::vector<WeightId> gates = read("ffn_gate_chexps.weight", adjugate.feed_forward, columns);
  std::vector<WeightId> ups = read("ffn_up_chexps.weight", adjugate.feed_forward, columns);
  std::vector<WeightId> downs = read("ffn_down_chexps.weight", columns, adjugate.feed_forward);
  if (tensors.failed()) return h;
  const ValueId gated = graph.expert_matmul(h, routing, std::move(gates));
  const ValueId raised = graph.expert_matmul(h, routing, std::move(ups));
  const ValueId activated = graph.gate(mixture.activation, gated, raised);
  return graph.scale(graph.expert_sum(activated, routing, std::move(downs)), adjugate.scale);
}

Result<AdjugateExperts> read_adjugate_experts(ModelKeys& keys, const std::string& architecture,
                                              size_t experts) {
  AdjugateExperts adjugate;
  adjugate.group = keys.count("experts_per_group", {}, experts);
  adjugate.feed_forward = keys.count_or_none("expert_chunk_feed_forward_length", kMostColumns);
  if (adjugate.feed_forward == 0) {
    adjugate.feed_forward = keys.count("attention.key_length", {}, kMostColumns);
  }
  const std::optional<double> scale = keys.any_number("expert_group_scale");
  if (auto read = keys.result(); !read) return std::unexpected(read.error());
  if (experts % adjugate.group != 0) {
    return invalid_input("{}.experts_per_group is {} and expert_count {}: groups are of one size",
                         architecture, adjugate.group, experts);
  }
  if (!scale) return invalid_input("{}.expert_group_scale is missing", architecture);
  adjugate.scale = static_cast<float>(*scale);
  if (!std::isfinite(adjugate.scale)) {
    return invalid_input("{}.expert_group_scale is {}; it must be a number", architecture, *scale);
  }
  return adjugate;
}

}  // namespace

Result<ExpertMixture> read_expert_mixture(ModelKeys& keys, const std::string& architecture,
                                          const MixtureTraits& traits, size_t layers) {
  ExpertMixture mixture;
  mixture.experts = keys.count("expert_count", {}, kMostExperts);
  mixture.chosen =
      keys.count("expert_used_count", {}, std::min<uint64_t>(kMostChosen, mixture.experts));
  mixture.feed_forward = keys.count_or_none("expert_feed_forward_length", kMostColumns);
  if (mixture.feed_forward == 0) {  // Mixtral's
    mixture.feed_forward = keys.count("feed_forward_length", {}, kMostColumns);
    if (traits.divides_width) {
      mixture.feed_forward =
          std::max<size_t>(1, mixture.feed_forward / std::max<size_t>(1, mixture.chosen));
    }
  }
  mixture.shared_feed_forward =
      keys.count_or_none("expert_shared_feed_forward_length", kMostColumns);
  if (mixture.shared_feed_forward == 0) {
    mixture.shared_feed_forward =
        std::max(traits.shared_experts, keys.count_or_none("expert_shared_count", kMostExperts)) *
        mixture.feed_forward;
  }
  if (mixture.shared_feed_forward == 0 && traits.divides_width) {
    mixture.shared_feed_forward = keys.count("feed_forward_length", {}, kMostColumns);
  }
  mixture.latent = keys.count_or_none("moe_latent_size", kMostColumns);
  mixture.dense_layers = keys.count_or_none("leading_dense_block_count", layers);
  mixture.step = std::max<size_t>(1, keys.count_or_none("interleave_moe_layer_step", layers));
  const double every = keys.any_number("moe_every_n_layers").value_or(0);
  auto gating = read_gating(keys, architecture, traits, mixture.experts);
  if (auto read = keys.result(); !read) return std::unexpected(read.error());
  if (!gating) return std::unexpected(gating.error());
  const double most = traits.may_alternate ? 2 : 1;
  if (every > most) {
    return invalid_input(
        "{}.moe_every_n_layers is {}; known is {}", architecture, every,
        traits.may_alternate ? "2 (experts in every second layer)" : "1 (experts in all layers)");
  }
  if (every == 2) mixture.step = 2;
  mixture.gating = *gating;
  mixture.activation = traits.activation;
  mixture.is_gated = traits.is_gated;
  mixture.router = traits.router;
  if (traits.has_adjugate) {
    auto adjugate = read_adjugate_experts(keys, architecture, mixture.experts);
    if (!adjugate) return std::unexpected(adjugate.error());
    mixture.adjugate = *adjugate;
  }
  const size_t choice = mixture.experts / gating->group_count * gating->chosen_groups;
  if (mixture.chosen > choice) {
    return invalid_input(
        "{}.expert_used_count is {}, but a token chooses among {} ({} of {} groups of {} experts)",
        architecture, mixture.chosen, choice, gating->chosen_groups, gating->group_count,
        mixture.experts);
  }
  if (layers * mixture.experts > kMostExpertsOfAllLayers) {
    return invalid_input(
        "{}.block_count is {} and expert_count {}; at most {} experts are accepted", architecture,
        layers, mixture.experts, kMostExpertsOfAllLayers);
  }
  return mixture;
}

ValueId add_expert_mixture(Graph& graph, ModelTensors& tensors, const ExpertMixture& mixture,
                           const std::string& block, const MixtureInputs& inputs) {
  const ValueId h = inputs.normed;
  const size_t experts = mixture.experts;
  const size_t wide = mixture.feed_forward;
  const ValueId scores = add_scores(graph, tensors, mixture, block, inputs);
  const WeightId bias = tensors.vector(block + "exp_probs_b.bias", experts, Presence::kOptional);
  const ValueId read = tensors.failed() ? h : add_latent(graph, tensors, mixture, block, h);
  const size_t columns = graph.columns(read);
  std::vector<std::string> names = {block + "ffn_gate", block + "ffn_up"};
  if (!mixture.is_gated) names.erase(names.begin());
  auto inner = tensors.experts(names, block + "ffn_gate_up", experts, wide, columns);
  std::vector<WeightId> downs = tensors.experts(block + "ffn_down", experts, columns, wide);
  std::vector<std::vector<WeightId>> inner_biases;
  for (const std::string& name : names) {
    inner_biases.push_back(tensors.expert_biases(name, experts, wide));
  }
  std::vector<WeightId> down_biases = tensors.expert_biases(block + "ffn_down", experts, columns);
  if (tensors.failed()) return h;

  const Gating gating = bias == kNone ? without_bias(mixture.gating) : mixture.gating;
  const ValueId routing = graph.route(scores, mixture.chosen, gating, bias);
  std::vector<ValueId> values;
  for (size_t index = 0; index < names.size(); ++index) {
    values.push_back(graph.expert_matmul(read, routing, std::move(inner[index]),
                                         std::move(inner_biases[index])));
  }
  ValueId sum = graph.expert_sum(activate(graph, mixture, values), routing, std::move(downs),
                                 std::move(down_biases));
  if (mixture.adjugate) {
    sum = graph.add(sum, add_adjugate_experts(graph, tensors, mixture, block, h, routing));
  }
  if (mixture.latent > 0) {
    const Product up = tensors.product(block, {"ffn_latent_up", graph.columns(h)}, columns);
    if (tensors.failed()) return h;
    sum = graph.matmul(sum, up.weight, up.bias);
  }
  if (mixture.shared_feed_forward == 0) return sum;
  return graph.add(sum, add_shared_experts(graph, tensors, mixture, block, h));
}

}  // namespace lockstep
