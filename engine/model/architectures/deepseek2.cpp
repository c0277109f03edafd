// DeepSeek V2, V3 and R1, Kimi K2, GLM 4.7 Flash, Mistral Large 3 and 4: latent attention, a
// mixture of experts beside shared ones behind some dense layers; Mistral's with temperatures of
// queries.
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

}  // namespace lockstep
