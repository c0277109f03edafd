// DeepSeek V2, V3 and R1, Kimi K2, GLM 4.7 Flash, Mistral Large 3 and 4: latent attention, a
// mixture of experts beside shared ones behind some dense layers; Mistral's with temperatures of
// queries. DeepSeek V3.2 and GLM 5 have an indexer, which is not run: it chooses the keys that
// tokens of longer contexts see. MiniCPM 3 has no experts, and factors that its files do not say.
#include <cmath>

#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_deepseek2(const ModelSource& source) {
  return build_decoder(source, {.temperature = TemperatureTraits{},
                                .experts = Presence::kRequired,
                                .mixture = {.is_normalized = false},
                                .has_latent_attention = true});
}

Result<Model> build_mistral4(const ModelSource& source) {
  return build_deepseek2(source);
}

Result<Model> build_deepseek32(const ModelSource& source) {
  return build_decoder(source, {.experts = Presence::kRequired,
                                .mixture = {.is_normalized = false},
                                .has_latent_attention = true,
                                .has_indexer = true});
}

Result<Model> build_glm_dsa(const ModelSource& source) {
  return build_decoder(source,
                       {.experts = Presence::kRequired,
                        .mixture = {.gating = GatingFunction::kSigmoid, .is_normalized = false},
                        .has_latent_attention = true,
                        .has_indexer = true});
}

Result<Model> build_minicpm3(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .embedding_factor = [](const DecoderSizes&) { return 12.0F; },
                                .residual_factor =
                                    [](const DecoderSizes& sizes) {
                                      return 1.4F / std::sqrt(static_cast<float>(sizes.layers));
                                    },
                                .logit_factor =
                                    [](const DecoderSizes& sizes) {
                                      return 256 / static_cast<float>(sizes.columns);
                                    },
                                .has_latent_attention = true});
}

}  // namespace lockstep
