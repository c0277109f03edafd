#include "engine/model/architectures/decoder_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/kernels/attention.h"
#include "engine/model/architectures/model_keys.h"

namespace lockstep {
namespace {

// Which layers have experts, and how wide the others' feed-forwards are, or those beside experts.
Result<void> read_feed_forward(ModelKeys& keys, const GgufFile& file,
                               const std::string& architecture, const DecoderTraits& traits,
                               DecoderShape& shape) {
  const size_t experts = keys.count_or_none("expert_count", kMostColumns);
  const size_t count = shape.sizes.layers;
  if (experts > 0 && !traits.experts) {
    return invalid_input(
        "{}.expert_count is {}: no mixtures of experts of this architecture are known",
        architecture, experts);
  }
  bool is_dense = experts == 0 && traits.experts != Presence::kRequired;
  if (!is_dense) {
    auto mixture = read_expert_mixture(keys, architecture, traits.mixture, count);
    if (!mixture) return std::unexpected(mixture.error());
    shape.mixture = *mixture;
  }
  for (size_t layer = 0; layer < count; ++layer) {
    const bool is_told = !traits.mixture.is_told_by_tensors ||
                         file.find_tensor(fmt::format("blk.{}.ffn_gate_inp.weight", layer));
    shape.layers[layer].has_experts = is_told && shape.mixture.has_experts(layer);
    is_dense = is_dense || !shape.layers[layer].has_experts;
  }
  if (!is_dense && !traits.beside) return {};
  const bool is_square = traits.beside && traits.beside->is_square;
  const uint64_t least = traits.may_lack_parts ? 0 : 1;
  const std::vector<size_t> wide =
      is_square ? std::vector<size_t>(count, shape.sizes.columns)
                : keys.counts("feed_forward_length", count, least, kMostColumns);
  for (size_t layer = 0; layer < count; ++layer) shape.layers[layer].feed_forward = wide[layer];
  return keys.result();
}

// The parameters of xIELU are trained, and each layer has its own (arXiv 2411.13010).
void read_activations(ModelKeys& keys, ActivationFunction function, DecoderShape& shape) {
  const size_t layers = shape.sizes.layers;
  for (LayerShape& layer : shape.layers) layer.activation = function;
  if (function != ActivationFunction::kXielu) return;
  const std::vector<float> positive = keys.numbers("xielu.alpha_p", layers);
  const std::vector<float> negative = keys.numbers("xielu.alpha_n", layers);
  const std::vector<float> beta = keys.numbers("xielu.beta", layers);
  const std::vector<float> limit = keys.numbers("xielu.eps", layers);
  const auto softplus = [](float x) { return x > 20 ? x : std::log1p(std::exp(x)); };
  for (size_t layer = 0; layer < layers; ++layer) {
    shape.layers[layer].activation = {
        function,
        {softplus(positive[layer]), beta[layer] + softplus(negative[layer]), beta[layer],
         limit[layer]}};
  }
}

// The layers that store keys and values of their own come first; each of the others reads those of
// the last one that has a window or none as it has.
Result<void> read_shared_layers(ModelKeys& keys, const std::string& architecture,
                                DecoderShape& shape) {
  const size_t count = shape.layers.size();
  const size_t shared = keys.count_or_none("attention.shared_kv_layers", count);
  for (size_t index = count - shared; index < count; ++index) {
    LayerShape& layer = shape.layers[index];
    size_t before = count - shared;
    while (before > 0 && shape.layers[before - 1].has_window != layer.has_window) --before;
    if (before == 0 || shape.layers[before - 1].heads != layer.heads) {
      return invalid_input(
          "{}.attention.shared_kv_layers is {}: no layer before has keys and values for layer {}",
          architecture, shared, index);
    }
    layer.stored_by = before - 1;
  }
  return {};
}

Result<void> check_heads(const std::string& architecture, const std::vector<size_t>& heads,
                         const std::vector<size_t>& kv_heads) {
  for (size_t layer = 0; layer < heads.size(); ++layer) {
    if (heads[layer] > 0 && kv_heads[layer] > 0) return {};
  }
  if (heads.empty()) return {};  // no layers, which is another error
  return invalid_input(
      "{}.attention.head_count or head_count_kv is 0 in each of {} layers; one of them must have "
      "attention",
      architecture, heads.size());
}

Result<void> read_delta_nets(ModelKeys& keys, const std::string& architecture,
                             const DecoderTraits& traits, DecoderShape& shape) {
  if (traits.delta_nets == DeltaHeads::kKimi) {
    const auto net = read_kimi_delta_net(keys, architecture, shape.sizes.heads);
    if (!net) return std::unexpected(net.error());
    for (LayerShape& layer : shape.layers) layer.has_delta_net = layer.kv_heads == 0;
    shape.delta_net = *net;
    shape.delta_net->norm_epsilon = shape.epsilon;
    return {};
  }
  const auto net = read_delta_net(keys, architecture, traits.delta_nets == DeltaHeads::kTiled);
  const size_t layers = shape.layers.size();
  const std::vector<bool> recurrent = read_recurrent_layers(keys, layers);
  if (!net) return std::unexpected(net.error());
  for (size_t layer = 0; layer < layers; ++layer) {
    shape.layers[layer].has_delta_net = recurrent[layer];
  }
  shape.delta_net = *net;
  shape.delta_net->norm_epsilon = shape.epsilon;
  shape.delta_net->heads.epsilon = shape.epsilon;
  return keys.result();
}

// Which layers have a state space, and which still have attention beside it.
Result<void> read_state_spaces(ModelKeys& keys, const std::string& architecture,
                               const DecoderTraits& traits, DecoderShape& shape) {
  const StateSpaces where = *traits.state_spaces;
  const auto space =
      read_state_space(keys, architecture, traits.state_space_kind, shape.sizes.columns);
  if (!space) return std::unexpected(space.error());
  shape.state_space = *space;
  shape.state_space->epsilon = shape.epsilon;
  for (LayerShape& layer : shape.layers) {
    const bool is_bare = layer.kv_heads == 0;
    const bool is_fed = layer.has_experts || layer.feed_forward > 0;
    layer.has_state_space = where == StateSpaces::kAlone || where == StateSpaces::kBesideOthers ||
                            (is_bare && (where == StateSpaces::kInPlace || !is_fed));
    if (is_bare) layer.heads = 0;
  }
  return {};
}

// Layers without heads, where state spaces stand in the place of all attention.
void read_no_attention(DecoderShape& shape) {
  shape.sizes.heads = 1;
  shape.sizes.head_dimension = 2;  // of rotary positions that no layer has
  for (LayerShape& layer : shape.layers) layer.head_dimension = shape.sizes.head_dimension;
}

// The attention that all heads of a layer make of keys and values of their own, or of latents.
Result<void> read_attention(ModelKeys& keys, const std::string& architecture,
                            const DecoderTraits& traits, DecoderShape& shape) {
  if (traits.state_spaces == StateSpaces::kAlone) {
    read_no_attention(shape);
    return {};
  }
  const size_t count = shape.sizes.layers;
  const uint64_t least = traits.may_lack_parts ? 0 : 1;
  const std::vector<size_t> heads = keys.counts("attention.head_count", count, least, kMostColumns);
  shape.sizes.heads = std::max<size_t>(1, heads.empty() ? 0 : std::ranges::max(heads));
  const bool is_kimi = traits.delta_nets == DeltaHeads::kKimi;
  const bool has_kv_heads =
      (!traits.has_latent_attention || is_kimi) && keys.has("attention.head_count_kv");
  const std::vector<size_t> kv_heads =
      has_kv_heads
          ? keys.counts("attention.head_count_kv", count,
                        traits.has_convolutions || traits.state_spaces || is_kimi ? 0 : least,
                        kMostColumns)
          : heads;
  if (auto read = keys.result(); !read) return read;
  if (auto checked = check_heads(architecture, heads, kv_heads); !checked) return checked;
  const uint64_t even_share = shape.sizes.columns / shape.sizes.heads;
  if (traits.has_latent_attention) {
    auto latent = read_latent_attention(keys, architecture, shape.sizes.heads, even_share);
    if (!latent) return std::unexpected(latent.error());
    shape.latent_attention = *latent;
    shape.sizes.head_dimension = latent->own_dimension + latent->rope_dimension;
  } else {
    shape.sizes.head_dimension = keys.count("attention.key_length", even_share, kMaxHeadDimension);
  }
  const size_t dimension = shape.sizes.head_dimension;
  const size_t value_dimension =
      shape.latent_attention ? shape.latent_attention->value_dimension
                             : keys.count("attention.value_length", dimension, kMaxHeadDimension);
  const size_t windowed = keys.count("attention.key_length_swa", dimension, kMaxHeadDimension);
  const size_t windowed_values =
      keys.count("attention.value_length_swa", value_dimension, kMaxHeadDimension);
  if (auto read = keys.result(); !read) return read;
  for (size_t index = 0; index < count; ++index) {
    LayerShape& layer = shape.layers[index];
    layer.stored_by = index;
    layer.heads = heads[index];
    layer.kv_heads = kv_heads[index];
    layer.head_dimension = layer.has_window ? windowed : dimension;
    layer.value_dimension = layer.has_window ? windowed_values : value_dimension;
    if (shape.latent_attention && layer.heads != shape.sizes.heads) {
      return invalid_input(
          "{}.attention.head_count holds {} at {} and {} elsewhere; over latents all layers must "
          "have the same number of heads",
          architecture, layer.heads, index, shape.sizes.heads);
    }
    if (layer.kv_heads == 0 || layer.heads % layer.kv_heads == 0) continue;
    return invalid_input(
        "{}.attention.head_count is {} and head_count_kv {}: the first must be a multiple of the "
        "second",
        architecture, layer.heads, layer.kv_heads);
  }
  return traits.shares_layers ? read_shared_layers(keys, architecture, shape) : Result<void>();
}

void read_window(ModelKeys& keys, const WindowTraits& traits, DecoderShape& shape) {
  if (traits.period == 0) return;
  shape.window = traits.presence == Presence::kRequired
                     ? keys.count("attention.sliding_window", {}, kMostContext)
                     : keys.count_or_none("attention.sliding_window", kMostContext);
  if (shape.window == 0) shape.window = traits.tokens;
  if (shape.window == 0) return;
  const size_t layers = shape.layers.size();
  const std::vector<bool> windowed = traits.period == 1
                                         ? std::vector<bool>(layers, true)
                                         : keys.pattern("attention.sliding_window_pattern", layers,
                                                        traits.period, traits.is_first_full);
  for (size_t layer = 0; layer < layers; ++layer) shape.layers[layer].has_window = windowed[layer];
}

void read_factors(ModelKeys& keys, const DecoderTraits& traits, DecoderShape& shape) {
  const auto read = [&](std::string_view key, double fallback) {
    return static_cast<float>(keys.factor(key, fallback));
  };
  const auto cap = [&](std::string_view key, float fallback) {
    return traits.has_caps ? static_cast<float>(keys.any_number(key).value_or(fallback)) : 0.0F;
  };
  for (LayerShape& layer : shape.layers) {
    const auto root = std::sqrt(static_cast<float>(layer.head_dimension));
    layer.score_factor =
        traits.score_factor != nullptr ? traits.score_factor(shape.sizes) : 1 / root;
  }
  if (traits.embedding_factor != nullptr) {
    shape.embedding_factor = traits.embedding_factor(shape.sizes);
  }
  if (traits.residual_factor != nullptr) {
    shape.residual_factor = traits.residual_factor(shape.sizes);
  }
  if (traits.logit_factor != nullptr) shape.logit_factor = traits.logit_factor(shape.sizes);
  if (traits.has_scales) {
    shape.embedding_factor *= read("embedding_scale", 1);
    shape.residual_factor = read("residual_scale", 1);
    // 0, as some files have it, stands for none.
    const double scores = keys.any_number("attention.scale").value_or(0);
    for (LayerShape& layer : shape.layers) {
      if (scores != 0) layer.score_factor = static_cast<float>(scores);
    }
  }
  if (traits.has_value_scale) shape.value_factor = read("attention.value_scale", 1);
  if (traits.clamps_inputs) {
    shape.input_bound = static_cast<float>(keys.any_number("attention.clamp_kqv").value_or(0));
  }
  shape.score_cap = cap("attn_logit_softcapping", traits.score_cap);
  shape.logit_cap = cap("final_logit_softcapping", traits.logit_cap);
  if (traits.logit_scale == LogitScale::kMultiplies) shape.logit_factor = read("logit_scale", 1);
  if (traits.logit_scale == LogitScale::kDivides) shape.logit_factor = 1 / read("logit_scale", 1);
}

// 1 + scale * ln(1 + position / so many tokens, without the key the original context).
void read_temperature(ModelKeys& keys, const TemperatureTraits& traits, DecoderShape& shape) {
  Temperature temperature = traits.usual;
  const double scale = keys.any_number("attention.temperature_scale").value_or(temperature.scale);
  if (scale == 0) return;
  const size_t original =
      keys.count("rope.scaling.original_context_length", shape.context, kMostContext);
  const size_t usual = traits.usual.scale == 0 ? original : traits.usual.tokens;
  temperature.scale = static_cast<float>(scale);
  temperature.tokens = keys.count("attention.temperature_length", usual, kMostContext);
  shape.temperature = temperature;
}

Result<void> check_finite(const std::string& architecture, const DecoderShape& shape) {
  const float scores = shape.layers.front().score_factor;  // of another layer as finite
  for (const auto& [what, value] :
       {std::pair("scores", scores),
        {"attn_logit_softcapping", shape.score_cap},
        {"final_logit_softcapping", shape.logit_cap},
        {"embedding_scale", shape.embedding_factor},
        {"residual_scale", shape.residual_factor},
        {"logit_scale", shape.logit_factor},
        {"attention.value_scale", shape.value_factor},
        {"attention.clamp_kqv", shape.input_bound},
        {"attention.temperature_scale", shape.temperature ? shape.temperature->scale : 0}}) {
    if (std::isfinite(value) && value >= 0) continue;
    return invalid_input("{}: the factor of {} is {}; it must be finite and not negative",
                         architecture, what, value);
  }
  return {};
}

// Leaves one layer of them, which attends, whatever others like it do.
void leave_block(DecoderShape& shape, size_t block) {
  LayerShape layer = shape.layers[block];
  layer.stored_by = 0;
  layer.has_delta_net = false;
  layer.has_state_space = false;
  shape.layers = {layer};
  shape.sizes.layers = 1;
  shape.first_block = block;
}

}  // namespace

Result<DecoderShape> read_decoder_shape(const GgufFile& file, const std::string& architecture,
                                        const DecoderTraits& traits, std::optional<size_t> block) {
  ModelKeys keys(file, architecture);
  DecoderShape shape;
  const size_t blocks = keys.count("block_count", {}, kMostLayers);
  // Blocks that predict further tokens (multi-token prediction) come last.
  const size_t predicting =
      traits.layers_predict ? 0 : keys.count_or_none("nextn_predict_layers", kMostLayers);
  const size_t trunk = blocks - std::min(predicting, blocks);
  shape.sizes.layers = block ? blocks : trunk;
  shape.layers.resize(shape.sizes.layers);
  shape.sizes.columns = keys.count("embedding_length", {}, kMostColumns);
  read_window(keys, traits.window, shape);
  const auto attention = read_attention(keys, architecture, traits, shape);
  shape.context = keys.count("context_length", {}, kMostContext);
  shape.epsilon = static_cast<float>(keys.number(traits.norm == NormKind::kRms
                                                     ? "attention.layer_norm_rms_epsilon"
                                                     : "attention.layer_norm_epsilon",
                                                 {}));
  const bool has_own_end = traits.predicting && traits.predicting->ends_with_layer_norm;
  shape.last_epsilon =
      has_own_end
          ? static_cast<float>(keys.number("attention.layer_norm_epsilon", double{shape.epsilon}))
          : shape.epsilon;
  const auto delta_nets =
      traits.delta_nets ? read_delta_nets(keys, architecture, traits, shape) : Result<void>();
  const auto feed_forward = read_feed_forward(keys, file, architecture, traits, shape);
  const auto state_spaces = traits.state_spaces && feed_forward
                                ? read_state_spaces(keys, architecture, traits, shape)
                                : Result<void>();
  read_activations(keys, traits.activation, shape);
  read_factors(keys, traits, shape);
  if (traits.temperature) read_temperature(keys, *traits.temperature, shape);
  if (traits.has_indexer) {
    shape.indexed_keys = keys.count("attention.indexer.top_k", {}, kMostContext);
  }
  if (traits.has_convolutions) {
    shape.convolved = keys.count("shortconv.l_cache", {}, kMostTaps, kLeastTaps);
  }
  if (traits.has_layer_embeddings) {
    shape.layer_columns = keys.count_or_none("embedding_length_per_layer_input", kMostColumns);
  }
  if (auto result = keys.result(); !result) return std::unexpected(result.error());
  if (!attention) return std::unexpected(attention.error());
  if (!feed_forward) return std::unexpected(feed_forward.error());
  if (!delta_nets) return std::unexpected(delta_nets.error());
  if (!state_spaces) return std::unexpected(state_spaces.error());
  if (shape.sizes.layers == 0) {
    return invalid_input("{}.block_count is {} and nextn_predict_layers {}: no layers are left",
                         architecture, blocks, predicting);
  }
  if (auto finite = check_finite(architecture, shape); !finite) {
    return std::unexpected(finite.error());
  }
  if (!block) return shape;
  if (trunk + *block >= blocks) {
    return invalid_input("{}.block_count is {} and nextn_predict_layers {}: there is no block {}",
                         architecture, blocks, predicting, trunk + *block);
  }
  leave_block(shape, trunk + *block);
  return shape;
}

}  // namespace lockstep
