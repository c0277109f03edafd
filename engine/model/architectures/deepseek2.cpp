// DeepSeek V2, V3 and R1, Kimi K2, GLM 4.7 Flash, Mistral Large 3 and 4: latent attention, a
// mixture of experts beside shared ones behind some dense layers; Mistral's with temperatures of
// queries. DeepSeek V3.2 and GLM 5 have an indexer, which is not run: it chooses the keys that
// tokens of longer contexts see.
#include "engine/model/architectures/decoder.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/model.h"

namespace lockstep {
namespace {

DecoderTraits traits_of_mixture(GatingFunction gating) {
  return {.temperature = TemperatureTraits{},
          .experts = Presence::kRequired,
          .mixture = {.gating = gating, .is_normalized = false},
          .has_latent_attention = true};
}

// Files of DeepSeek V2, and the first ones of GLM 4.7 Flash, have no expert_gating_func. The latter
// are known by their vocabulary and their layers, to which some count the block that predicts
// further tokens.
bool is_glm_flash(const GgufFile& file, size_t layers) {
  constexpr uint64_t kVocabulary = 154880;
  constexpr size_t kLayers = 47;
  const GgufTensor* const embedding = file.find_tensor("token_embd.weight");
  return embedding != nullptr && embedding->rows() == kVocabulary &&
         (layers == kLayers || layers == kLayers + 1);
}

}  // namespace

Result<Model> build_deepseek2(const ModelSource& source) {
  const auto layers = read_layer_count(source.file, "deepseek2");
  if (!layers) return std::unexpected(layers.error());
  const bool is_flash = is_glm_flash(source.file, *layers);
  DecoderTraits traits =
      traits_of_mixture(is_flash ? GatingFunction::kSigmoid : GatingFunction::kSoftmax);
  traits.predicting = PredictingTraits{};
  return build_decoder(source, traits);
}

Result<Model> build_mistral4(const ModelSource& source) {
  return build_decoder(source, traits_of_mixture(GatingFunction::kSoftmax));
}

// Kimi Linear: Kimi Delta Attention in most layers, latent attention without positions in the
// others.
Result<Model> build_kimi_linear(const ModelSource& source) {
  return build_decoder(source, {.has_rotary = [](size_t) { return false; },
                                .delta_nets = DeltaHeads::kKimi,
                                .experts = Presence::kRequired,
                                .mixture = {.gating = GatingFunction::kSigmoid},
                                .has_latent_attention = true});
}

Result<Model> build_deepseek32(const ModelSource& source) {
  return build_decoder(source, {.experts = Presence::kRequired,
                                .mixture = {.is_normalized = false},
                                .has_latent_attention = true,
                                .predicting = PredictingTraits{},
                                .has_indexer = true});
}

Result<Model> build_glm_dsa(const ModelSource& source) {
  return build_decoder(source,
                       {.experts = Presence::kRequired,
                        .mixture = {.gating = GatingFunction::kSigmoid, .is_normalized = false},
                        .has_latent_attention = true,
                        .predicting = PredictingTraits{},
                        .has_indexer = true});
}

}  // namespace lockstep
