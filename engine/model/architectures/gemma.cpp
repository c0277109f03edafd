// Gemma: embeddings times the root of their columns; gates by GELU. Gemma 2 has norms behind
// attention and feed-forward, caps of scores and logits, and a window in every second layer; Gemma
// 3 norms of heads, and a window and positions of its own in five of six layers, and EmbeddingGemma
// is one of these whose tokens see those behind them, too; Gemma 4 heads of another size there,
// norms of values too, and, by model, embeddings for each layer, layers that read earlier ones'
// keys and values, and experts beside a dense feed-forward.
#include <cmath>

#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {
namespace {

constexpr LayerNorms kNorms = {.behind_attention = "post_attention_norm",
                               .behind_feed_forward = "post_ffw_norm"};

float root_of_columns(const DecoderSizes& sizes) {
  return std::sqrt(static_cast<float>(sizes.columns));
}

// The scores of a generation's largest model, which is known by its layers, are scaled by an even
// share of the residual's columns, others' by a head's dimensions.
template <size_t kLargestLayers>
float score_factor(const DecoderSizes& sizes) {
  const size_t share = sizes.columns / sizes.heads;
  return 1 / std::sqrt(
                 static_cast<float>(sizes.layers == kLargestLayers ? share : sizes.head_dimension));
}

float score_factor_of_one(const DecoderSizes&) {
  return 1;
}

}  // namespace

Result<Model> build_gemma(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .embedding_factor = root_of_columns,
                                .activation = ActivationFunction::kGeluTanh});
}

Result<Model> build_gemma2(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .norms = kNorms,
                                .window = {.period = 2, .tokens = 4096},
                                .score_factor = score_factor<46>,
                                .score_cap = 50,
                                .logit_cap = 30,
                                .has_caps = true,
                                .embedding_factor = root_of_columns,
                                .activation = ActivationFunction::kGeluTanh});
}

Result<Model> build_gemma_embedding(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .norms = kNorms,
                                .head_norms = {.presence = Presence::kRequired},
                                .window = {.period = 6, .rope_base = 10000, .is_scaled = false},
                                .embedding_factor = root_of_columns,
                                .activation = ActivationFunction::kGeluTanh,
                                .is_encoder = true});
}

Result<Model> build_gemma3(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .norms = kNorms,
                                .head_norms = {.presence = Presence::kRequired},
                                .window = {.period = 6, .rope_base = 10000, .is_scaled = false},
                                .score_factor = score_factor<62>,
                                .has_caps = true,
                                .embedding_factor = root_of_columns,
                                .activation = ActivationFunction::kGeluTanh});
}

Result<Model> build_gemma4(const ModelSource& source) {
  return build_decoder(
      source, {.rotary_pairs = RotaryPairs::kHalves,
               .norms = kNorms,
               .head_norms = {.presence = Presence::kRequired, .of_values = true},
               .window = {.period = 6, .presence = Presence::kRequired, .is_scaled = false},
               .score_factor = score_factor_of_one,
               .has_caps = true,
               .embedding_factor = root_of_columns,
               .may_share_keys = true,
               .shares_layers = true,
               .has_layer_embeddings = true,
               .has_output_scales = true,
               .activation = ActivationFunction::kGeluTanh,
               .experts = Presence::kOptional,
               .mixture = {.activation = ActivationFunction::kGeluTanh,
                           .router = RouterInput::kOwnNorm,
                           .is_told_by_tensors = true},
               .beside = BesideTraits{.before_experts = "pre_ffw_norm_2",
                                      .behind_experts = "post_ffw_norm_2",
                                      .behind_dense = "post_ffw_norm_1"}});
}

}  // namespace lockstep
