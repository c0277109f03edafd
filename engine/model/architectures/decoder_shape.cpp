#include "engine/model/architectures/decoder_shape.h"

#include <algorithm>
#include <cmath>

#include "engine/kernels/attention.h"
#include "engine/model/architectures/model_keys.h"

namespace lockstep {
namespace {

Result<void> read_feed_forward(ModelKeys& keys, const std::string& architecture,
                               const DecoderTraits& traits, DecoderShape& shape) {
  const size_t experts = keys.count_or_none("expert_count", kMostColumns);
  const auto read_dense = [&] {
    shape.feed_forward = keys.count("feed_forward_length", {}, kMostColumns);
    return keys.result();
  };
  if (experts == 0 && traits.experts != Presence::kRequired) return read_dense();
  if (!traits.experts) {
    return invalid_input(
        "{}.expert_count is {}: no mixtures of experts of this architecture are known",
        architecture, experts);
  }
  const size_t layers = shape.sizes.layers;
  auto mixture = read_expert_mixture(keys, architecture, traits.mixture, layers);
  if (!mixture) return std::unexpected(mixture.error());
  shape.mixture = *mixture;
  for (size_t layer = 0; layer < layers; ++layer) {
    if (!shape.mixture.has_experts(layer)) return read_dense();
  }
  return {};
}

// The parameters of xIELU are trained, and each layer has its own (arXiv 2411.13010).
void read_activations(ModelKeys& keys, ActivationFunction function, DecoderShape& shape) {
  const size_t layers = shape.sizes.layers;
  shape.activations.assign(layers, function);
  if (function != ActivationFunction::kXielu) return;
  const std::vector<float> positive = keys.numbers("xielu.alpha_p", layers);
  const std::vector<float> negative = keys.numbers("xielu.alpha_n", layers);
  const std::vector<float> beta = keys.numbers("xielu.beta", layers);
  const std::vector<float> limit = keys.numbers("xielu.eps", layers);
  const auto softplus = [](float x) { return x > 20 ? x : std::log1p(std::exp(x)); };
  for (size_t layer = 0; layer < layers; ++layer) {
    shape.activations[layer] = {function,
                                {softplus(positive[layer]), beta[layer] + softplus(negative[layer]),
                                 beta[layer], limit[layer]}};
  }
}

// The attention that all heads of a layer make of keys and values of their own, or of latents.
Result<void> read_attention(ModelKeys& keys, const std::string& architecture,
                            const DecoderTraits& traits, DecoderShape& shape) {
  const size_t heads = shape.sizes.heads;
  if (traits.has_latent_attention) {
    auto latent = read_latent_attention(keys, architecture, heads);
    if (!latent) return std::unexpected(latent.error());
    shape.latent_attention = *latent;
    shape.sizes.head_dimension = latent->own_dimension + latent->rope_dimension;
    return {};
  }
  shape.kv_heads = keys.count("attention.head_count_kv", heads, kMostColumns);
  const uint64_t even_share = shape.sizes.columns / heads;
  shape.sizes.head_dimension = keys.count("attention.key_length", even_share, kMaxHeadDimension);
  shape.value_dimension =
      keys.count("attention.value_length", shape.sizes.head_dimension, kMaxHeadDimension);
  if (auto read = keys.result(); !read) return read;
  if (heads % shape.kv_heads == 0) return {};
  return invalid_input(
      "{}.attention.head_count is {} and head_count_kv {}: the first must be a multiple of the "
      "second",
      architecture, heads, shape.kv_heads);
}

void read_window(ModelKeys& keys, const WindowTraits& traits, DecoderShape& shape) {
  shape.windowed.assign(shape.sizes.layers, true);
  if (traits.period == 0) return;
  shape.window = traits.presence == Presence::kRequired
                     ? keys.count("attention.sliding_window", {}, kMostContext)
                     : keys.count_or_none("attention.sliding_window", kMostContext);
  if (shape.window == 0) shape.window = traits.tokens;
  if (traits.period == 1 || shape.window == 0) return;
  shape.windowed =
      keys.pattern("attention.sliding_window_pattern", shape.sizes.layers, traits.period);
}

void read_factors(ModelKeys& keys, const DecoderTraits& traits, DecoderShape& shape) {
  const auto read = [&](std::string_view key, double fallback) {
    return static_cast<float>(keys.factor(key, fallback));
  };
  const auto cap = [&](std::string_view key, float fallback) {
    return traits.has_caps ? static_cast<float>(keys.any_number(key).value_or(fallback)) : 0.0F;
  };
  const auto root = std::sqrt(static_cast<float>(shape.sizes.head_dimension));
  shape.score_factor = traits.score_factor != nullptr ? traits.score_factor(shape.sizes) : 1 / root;
  if (traits.embedding_factor != nullptr) {
    shape.embedding_factor = traits.embedding_factor(shape.sizes);
  }
  if (traits.has_scales) {
    shape.embedding_factor *= read("embedding_scale", 1);
    shape.residual_factor = read("residual_scale", 1);
    // 0, as some files have it, stands for none.
    const double scores = keys.any_number("attention.scale").value_or(0);
    if (scores != 0) shape.score_factor = static_cast<float>(scores);
  }
  shape.score_cap = cap("attn_logit_softcapping", traits.score_cap);
  shape.logit_cap = cap("final_logit_softcapping", traits.logit_cap);
  if (traits.logit_scale == LogitScale::kMultiplies) shape.logit_factor = read("logit_scale", 1);
  if (traits.logit_scale == LogitScale::kDivides) shape.logit_factor = 1 / read("logit_scale", 1);
}

// Mistral's: 1 + scale * ln(1 + position / so many tokens, without the key the original context).
void read_temperature(ModelKeys& keys, DecoderShape& shape) {
  const double scale = keys.any_number("attention.temperature_scale").value_or(0);
  if (scale == 0) return;
  const size_t original =
      keys.count("rope.scaling.original_context_length", shape.context, kMostContext);
  const size_t tokens = keys.count("attention.temperature_length", original, kMostContext);
  shape.temperature = Temperature{.scale = static_cast<float>(scale), .tokens = tokens};
}

Result<void> check_finite(const std::string& architecture, const DecoderShape& shape) {
  for (const auto& [what, value] :
       {std::pair("scores", shape.score_factor),
        {"attn_logit_softcapping", shape.score_cap},
        {"final_logit_softcapping", shape.logit_cap},
        {"embedding_scale", shape.embedding_factor},
        {"residual_scale", shape.residual_factor},
        {"logit_scale", shape.logit_factor},
        {"attention.temperature_scale", shape.temperature ? shape.temperature->scale : 0}}) {
    if (std::isfinite(value) && value >= 0) continue;
    return invalid_input("{}: the factor of {} is {}; it must be finite and not negative",
                         architecture, what, value);
  }
  return {};
}

}  // namespace

Result<DecoderShape> read_decoder_shape(const GgufFile& file, const std::string& architecture,
                                        const DecoderTraits& traits) {
  ModelKeys keys(file, architecture);
  DecoderShape shape;
  const size_t blocks = keys.count("block_count", {}, kMostLayers);
  // Blocks that predict further tokens (multi-token prediction) come last.
  const size_t predicting = keys.count_or_none("nextn_predict_layers", kMostLayers);
  shape.sizes.layers = blocks - std::min(predicting, blocks);
  shape.sizes.columns = keys.count("embedding_length", {}, kMostColumns);
  shape.sizes.heads = keys.count("attention.head_count", {}, kMostColumns);
  const auto attention = read_attention(keys, architecture, traits, shape);
  shape.context = keys.count("context_length", {}, kMostContext);
  shape.epsilon = static_cast<float>(keys.number(traits.norm == NormKind::kRms
                                                     ? "attention.layer_norm_rms_epsilon"
                                                     : "attention.layer_norm_epsilon",
                                                 {}));
  const auto feed_forward = read_feed_forward(keys, architecture, traits, shape);
  read_window(keys, traits.window, shape);
  read_activations(keys, traits.activation, shape);
  read_factors(keys, traits, shape);
  if (traits.has_temperature) read_temperature(keys, shape);
  if (auto result = keys.result(); !result) return std::unexpected(result.error());
  if (!attention) return std::unexpected(attention.error());
  if (!feed_forward) return std::unexpected(feed_forward.error());
  if (shape.sizes.layers == 0) {
    return invalid_input("{}.block_count is {} and nextn_predict_layers {}: no layers are left",
                         architecture, blocks, predicting);
  }
  if (auto finite = check_finite(architecture, shape); !finite) {
    return std::unexpected(finite.error());
  }
  return shape;
}

}  // namespace lockstep
