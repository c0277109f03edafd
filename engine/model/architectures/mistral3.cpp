// Mistral 3: queries are scaled by a temperature of their position.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_mistral3(const ModelSource& source) {
  return build_decoder(source,
                       {.temperature = TemperatureTraits{}, .experts = Presence::kOptional});
}

}  // namespace lockstep
